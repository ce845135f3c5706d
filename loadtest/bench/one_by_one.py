"""Voyage AI's comparison: batches on vLLM against queries one by one on transformers, same processor and ids."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack

from loadtest.bench.figures import Figure
from loadtest.bench.forward import Forward, asked
from loadtest.bench.setting import Plan
from loadtest.screen import ERRORS

NAME = "sequential"
TOKENS = 12
BATCHES = (1, 21, 85)
"""Queries of a batch: one by one, about the saturation point of a small processor, and four times that."""
_FORWARD = "loadtest.bench.programs.engine_forward"
_TURN_S = 2.0
_TURNS_PER_REPEAT = 3
_FEWEST = 5


def measure(plan: Plan) -> list[Figure]:
    """All in turns, each in a process of its own that is idle while another works."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    turns = plan.repeats * _TURNS_PER_REPEAT
    with ExitStack() as stack:

        def start(name: str, *command: str) -> Forward:
            return stack.enter_context(asked(command, plan.folder / f"{name}.log"))

        sequential = start("transformers", "loadtest.bench.programs.transformers_forward", "--tokens", str(TOKENS))
        ours = {
            size: start(f"forward{size}", _FORWARD, "--queries", str(size), "--tokens", str(TOKENS)) for size in BATCHES
        }
        sides = [(sequential, 1), *((forward, size) for size, forward in ours.items())]
        rates: list[list[float]] = [[] for _ in sides]
        steps = [max(_FEWEST, round(_TURN_S / forward.seconds(1))) for forward, _ in sides]
        for turn in range(turns):
            for number, (forward, size) in enumerate(sides):
                rates[number].append(steps[number] * size / forward.seconds(steps[number]))
            ERRORS.print(f"{NAME} {turn + 1} of {turns}: " + ", ".join(f"{of_one[-1]:.0f}/s" for of_one in rates))
        notes = f"{TOKENS} tokens a query, float32, random ids, {ours[1].engine}"
    return figures(rates, turns, notes)


def figures(rates: Sequence[Sequence[float]], turns: int, notes: str) -> list[Figure]:
    """Medians of queries a second (transformers first, then each of `BATCHES`), and of ratios turn by turn."""
    sequential, *batched = rates
    found = [Figure(NAME, "transformers_one_by_one", statistics.median(sequential), "query/s", turns, notes)]
    for size, of_size in zip(BATCHES, batched, strict=True):
        over = statistics.median(ours / theirs for ours, theirs in zip(of_size, sequential, strict=True))
        found += [
            Figure(NAME, f"vllm_by_{size}", statistics.median(of_size), "query/s", turns, notes),
            Figure(NAME, f"vllm_by_{size}_over_transformers", over, "ratio", turns, notes),
        ]
    return found
