"""Voyage AI's comparison: batches on vLLM against queries one by one on transformers, same processor and ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from loadtest.lab.bench.asked import Asked, asked
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.setting import Plan
from loadtest.lab.bench.turns import Medians, in_turns

NAME = "sequential"
TOKENS = 12
BATCHES = (1, 21, 85)
"""Queries of a batch: one by one, about the saturation point of a small processor, and four times that."""
_FORWARD = "loadtest.lab.bench.programs.engine_forward"
_TURN_S = 2.0
_TURNS_PER_REPEAT = 3
_FEWEST = 5


def measure(plan: Plan) -> list[Figure]:
    """Measure all in turns: each has its own process, and one works at a time."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    turns = plan.repeats * _TURNS_PER_REPEAT
    with ExitStack() as stack:

        def start(name: str, *command: str) -> Asked:
            return stack.enter_context(asked(command, plan.folder / f"{name}.log"))

        sequential = start("transformers", "loadtest.lab.bench.programs.transformers_forward", "--tokens", str(TOKENS))
        ours = {
            size: start(f"forward{size}", _FORWARD, "--queries", str(size), "--tokens", str(TOKENS)) for size in BATCHES
        }
        kinds = {"transformers_one_by_one": (sequential, 1)} | {
            f"vllm_by_{size}": (forward, size) for size, forward in ours.items()
        }
        sides = {
            name: partial(_rate, forward, size, max(_FEWEST, round(_TURN_S / forward.seconds(1))))
            for name, (forward, size) in kinds.items()
        }
        found = in_turns(NAME, turns, sides, "{:.0f}/s".format)
        notes = f"{TOKENS} tokens a query, float32, random ids, {ours[1].engine}"
    return figures(found, Medians(NAME, turns, notes))


def _rate(forward: Asked, size: int, steps: int, _: int) -> float:
    return steps * size / forward.seconds(steps)


def figures(found: Mapping[str, Sequence[float]], medians: Medians) -> list[Figure]:
    """Medians of queries a second (transformers first), and of ratios turn by turn."""
    (_, sequential), *batched = found.items()
    return [
        *(medians.of(name, "query/s", rates) for name, rates in found.items()),
        *(medians.ratio(f"{name}_over_transformers", rates, sequential) for name, rates in batched),
    ]
