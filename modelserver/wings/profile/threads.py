"""Measure from which size on a step is worth all threads of the engine (ADR 17)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np

from modelserver.engines.engine import Measurable, StepThreads
from modelserver.wings.profile.measure import production_mix

_log = logging.getLogger(__name__)

_SEED = 20_240_501
_SMALLEST, _LARGEST, _GROWTH = 8, 1024, 2**0.5
"""Tokens of the steps that are measured: each larger than the last by this factor."""
_MOST = 5  # of nine turns: a step that is disturbed loses one
_IN_A_ROW = 2  # a single size may be quicker by chance
_LONGEST_S = 0.05
"""Nothing larger is measured than the first step that takes one thread longer: waking the others takes milliseconds,
and if they make such a step no quicker, other work has their cores at this time."""


def measure_threads(engine: Measurable, threads: StepThreads, clock: Callable[[], float] = time.perf_counter) -> int:
    """The `threaded_tokens` of an engine: one more than the largest step that one thread computes as quickly as all do.

    Called on the engine's thread. Sizes grow until all threads are quicker at two in a row, in most of the turns that
    they take, or one thread takes long.
    """
    if threads.count == 1:
        return 0
    rng = np.random.default_rng(_SEED)

    def took_s(tokens: int, *, one: bool) -> float:
        step = engine.prepare(*production_mix(tokens, engine.facts, rng))
        threads.threaded_tokens = tokens + 1 if one else 0
        began_s = clock()
        step.execute()
        return clock() - began_s

    began_s, below, slower = clock(), 0, 0
    _log.info("measuring the threads of small steps", extra={"stage": "threads", "threads": threads.count})
    for tokens in _sizes(engine.facts.step_token_capacity):
        took_s(tokens, one=True)  # the first step of a size also builds its kernels
        turns: list[tuple[float, float]] = []
        while max(won := sum(one <= several for one, several in turns), len(turns) - won) < _MOST:
            turns.append((took_s(tokens, one=True), took_s(tokens, one=False)))
        below, slower = (tokens + 1, 0) if won == _MOST else (below, slower + 1)
        if slower == _IN_A_ROW or min(turns)[0] > _LONGEST_S:
            break
    _log.info(
        "measured the threads of small steps",
        extra={"stage": "threads", "threads": threads.count, "threaded_tokens": below,
               "took_s": round(clock() - began_s, 3)},
    )  # fmt: skip
    return below


def _sizes(capacity: int) -> list[int]:
    count = round(np.log(_LARGEST / _SMALLEST) / np.log(_GROWTH)) + 1
    return [size for size in np.geomspace(_SMALLEST, _LARGEST, count).round().astype(int).tolist() if size <= capacity]
