"""`int8`: what MiniLM with int8 weights and activations (W8A8) gains in vLLM's engine on this machine, and costs."""

from __future__ import annotations

import shutil
from contextlib import ExitStack

from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.quality import quality
from loadtest.lab.bench.setting import Plan
from loadtest.lab.bench.sides import Load, Ours, Side, dtype_of, ratio, timed, usual
from loadtest.lab.bench.turns import Medians
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.service import ModelServer, without_kafka
from loadtest.texts.model_folder import make_once

NAME = "int8"
_TURN_S, _LOAD = 6.0, Load(4, 64)
"""Lists, so that the engine sets the rate."""
_BOUNDS = {"int8_over_direct": "≥ 1.3", "int8_same_nearest": "≥ 0.99"}
"""What a setting `engine.dtype: int8` would have to give."""


def measure(plan: Plan) -> list[Figure]:
    """The engine of vLLM with int8 and without, and the engine that the model server chooses, in turns."""
    folder = plan.folder / "minilm_int8"
    shutil.rmtree(folder, ignore_errors=True)
    make_once(folder, "loadtest.texts.minilm_int8")
    settings = {
        "int8": {"MODEL__PATH": str(folder), "ENGINE__KIND": "core"},
        "core": {"ENGINE__KIND": "core"},
        "direct": {},
    }
    sides: dict[str, Side] = {}
    with ExitStack() as running:
        for name, told in settings.items():
            usual_ones = {"MODEL__NAME": MODEL, "PROFILE__CACHE": str(plan.profiles)}
            log_file = plan.folder / f"modelserver_{name}.log"
            server = running.enter_context(ModelServer(log_file, settings={**usual_ones, **told}))
            aggregator = without_kafka(plan.folder / f"aggregator_{name}.log", model=MODEL, servers=[server.address])
            sides[name] = Ours(running.enter_context(aggregator), server, dtype_of(server))
        found = timed(NAME, plan, {name: (side, _LOAD) for name, side in sides.items()}, _TURN_S)
        good = quality(NAME, plan, sides)
    medians = Medians(NAME, plan.repeats, f"turns of {_TURN_S:g} s, four callers with lists of 64", _BOUNDS)
    return [
        *usual(found, medians),
        ratio(medians, found, "int8_over_core", ("int8", "core")),
        ratio(medians, found, "int8_over_direct", ("int8", "direct")),
        *(medians.of(each.figure, each.unit, [each.value], each.notes) for each in good),
    ]
