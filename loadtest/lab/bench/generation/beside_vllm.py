"""P7 and P8: 64 texts at a time through aggregator and model server, over vLLM's own server, in turns.

P7 has a model whose computation is next to nothing, to show what all around it costs. P8 has SmolLM2.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.generation.sides import Load, Side, Turn, both_sides
from loadtest.lab.bench.setting import Plan
from loadtest.lab.bench.turns import Medians, in_turns
from loadtest.stack.part import output_of
from loadtest.texts.smollm2 import smollm2

TINY, SMOLLM2 = "P7", "P8"
_STREAMS = 64
_TINY_LOADS = {"": Load(_STREAMS, 4 * _STREAMS, 64), "_whole": Load(_STREAMS, 4 * _STREAMS, 64, whole=True)}
_SMOLLM2_LOADS = {"": Load(_STREAMS, 2 * _STREAMS, 8)}
_LATENCY_BOUNDS = {"first_p99_over_vllm": "≤ 1.0", "between_p99_over_vllm": "≤ 1.0"}
TINY_BOUNDS = {
    "tokens_over_vllm": "≥ 1.3",
    "cpu_over_vllm": "≤ 0.6",
    "whole_ours_front_cpu": "≤ 5",
    **_LATENCY_BOUNDS,
}
_SMOLLM2_BOUNDS = {"tokens_over_vllm": "≥ 1.0", **_LATENCY_BOUNDS}
_REST_S = 3.0
"""Before each turn: vLLM's processes spin on for a moment after their last answer."""
_THREADS = 1
"""That compute, as vLLM itself has it on two cores: the other one is for all that is around them."""
_FIGURES: Sequence[tuple[str, str, float]] = (
    ("tokens_per_s", "token/s", 1.0),
    ("first_p50_s", "ms", 1e3),
    ("first_p99_s", "ms", 1e3),
    ("between_p50_s", "ms", 1e3),
    ("between_p99_s", "ms", 1e3),
    ("server_cpu_us", "us/token", 1.0),
    ("front_cpu_us", "us/token", 1.0),
    ("client_cpu_us", "us/token", 1.0),
)
_RATIOS = {
    "tokens_over_vllm": "tokens_per_s",
    "first_p99_over_vllm": "first_p99_s",
    "between_p99_over_vllm": "between_p99_s",
    "cpu_over_vllm": "server_cpu_us",
}


def measure_tiny(plan: Plan) -> list[Figure]:
    """Streamed, and each text in one message."""
    folder = plan.folder / "tiny-random"
    output_of("loadtest.texts.tiny", str(folder))
    return _measured(plan, TINY, folder, _TINY_LOADS, TINY_BOUNDS)


def measure_smollm2(plan: Plan) -> list[Figure]:
    """Streamed, on one thread that computes."""
    return _measured(plan, SMOLLM2, smollm2(), _SMOLLM2_LOADS, _SMOLLM2_BOUNDS)


def _measured(plan: Plan, name: str, model: Path, loads: Mapping[str, Load], bounds: Mapping[str, str]) -> list[Figure]:
    """Each load on both sides in turns, and the figures with their bounds."""
    with both_sides(plan, model, _THREADS) as (ours, theirs, dtype):
        sides: dict[str, tuple[Side, Load]] = {
            f"{side_name}{load_name}": (side, load)
            for load_name, load in loads.items()
            for side_name, side in (("ours", ours), ("vllm", theirs))
        }
        for side, load in sides.values():
            side.turn(replace(load, texts=load.callers), 0)
        turns = {name: partial(_turn, side, load) for name, (side, load) in sides.items()}
        found = in_turns(name, plan.repeats, turns, lambda turn: f"{turn.tokens_per_s:.0f}/s")
    load = loads[""]
    notes = f"{load.callers} callers, {load.texts} texts of {load.tokens} to {3 * load.tokens} tokens a turn; {dtype}"
    return figures(found, Medians(name, plan.repeats, notes, bounds))


def _turn(side: Side, load: Load, turn: int) -> Turn:
    time.sleep(_REST_S)
    return side.turn(load, 1 + turn)


def figures(found: Mapping[str, Sequence[Turn]], medians: Medians) -> list[Figure]:
    """Medians of each side's turns, and of the ratios turn by turn."""
    figures: list[Figure] = []
    for key, turns in found.items():
        side, _, whole = key.partition("_")
        notes = f"{medians.notes}; whole texts" if whole else medians.notes
        for attribute, unit, scale in _FIGURES:
            figure = f"{whole}_{side}_{attribute}".strip("_").removesuffix("_s" if unit == "ms" else "_us")
            figures.append(medians.of(figure, unit, (scale * getattr(turn, attribute) for turn in turns), notes))
    for figure, attribute in _RATIOS.items():
        ours, theirs = (map(attrgetter(attribute), found[side]) for side in ("ours", "vllm"))
        figures.append(medians.ratio(figure, ours, theirs))
    return figures
