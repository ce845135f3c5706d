"""Measure how an engine's step time depends on its tokens, and fit the saturation point (algorithms §3)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median

import numpy as np

from modelserver.engines.engine import EngineFacts, IdArray, Measurable
from modelserver.errors import CannotStart
from modelserver.wings.profile.saturation import MIN_TOTALS, Curve, fit, fit_captured, sweep_tokens

_log = logging.getLogger(__name__)

_SEED = 20_240_501
_SMALLEST_TOTAL = 8  # tokens: below it every step takes the same time
_SHORTEST_S = 1e-9  # a clock may not move between two readings
_LOG_EVERY_S = 2.0  # a line of progress
_SIZES = 6  # steps of a factor of two or less up to 32 times the saturation point
_WORTH = 0.99
"""Share of peak throughput. Where larger batches gain nothing, as past a hinge, the saturation point reaches it."""
PRODUCTION_LENGTHS = (10, 10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 12, 12, 12, 12, 13, 13, 14, 15, 17)
"""Lengths in tokens of short queries, as twenty quantiles: the NQ-open questions, as MiniLM's tokenizer counts."""


@dataclass(frozen=True, slots=True)
class ProfileOwner:
    """The setup that a profile belongs to, and says nothing about others.

    `options`: `engine.vllm_options` as JSON. `graphs`: the sizes of graphs of the engine's own, in tokens.
    """

    model: str
    revision: str
    dtype: str
    engine: str
    engine_version: str
    device: str
    options: str = "{}"
    graphs: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """A measured curve: medians over `runs` rounds at each total of tokens, in seconds.

    `threaded_tokens`: from which size on a step is worth all threads; None: not measured, as on a GPU.
    """

    owner: ProfileOwner
    curve: Curve
    points: tuple[tuple[int, float], ...]
    runs: int
    measured_at: str
    threaded_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """How much to measure: up to `max_tokens`, `runs` rounds if `budget_s` allows, never less than `min_runs`."""

    max_tokens: int
    budget_s: float
    runs: int
    min_runs: int


def measure(
    engine: Measurable, owner: ProfileOwner, plan: SweepPlan, clock: Callable[[], float] = time.perf_counter
) -> Profile:
    """Sweep the engine on the calling thread, which is its own. Raises CannotStart for a step too small to fit."""
    totals = _totals(plan.max_tokens, engine.facts)
    times = sweep(engine, totals, plan, clock)
    points = tuple((total, median(times[total])) for total in totals)
    profile = Profile(
        owner=owner,
        curve=fit_captured(points, plan.max_tokens, engine.facts.capture_sizes),
        points=points,
        runs=min(map(len, times.values())),
        measured_at=_now(),
    )
    _log.info("measured the saturation profile", extra=summary(profile))
    return profile


def known(step_s: Callable[[int], float], owner: ProfileOwner, max_tokens: int, capacity: int = 0) -> Profile:
    """The profile of an engine whose step time follows from a formula: nothing is run.

    `capacity`: tokens that a step holds; 0: as many as are measured. Raises CannotStart for a step too small to fit.
    """
    points = tuple((total, max(step_s(total), _SHORTEST_S)) for total in _totals(max_tokens))
    curve = fit(points, max_tokens)
    backlog = backlog_tokens(
        [(size, curve.time_s(size)) for size in batch_sizes(curve.saturation_point, capacity or max_tokens)]
    )
    return Profile(owner, replace(curve, backlog_tokens=backlog), points, runs=0, measured_at=_now())


def _totals(max_tokens: int, facts: EngineFacts | None = None) -> tuple[int, ...]:
    """The totals of the sweep: the sizes that the engine has graphs for, the first without one, and those above."""
    try:
        totals = sweep_tokens(max_tokens, _SMALLEST_TOTAL)
    except ValueError as error:
        raise CannotStart(f"engine.step_tokens: {error}") from error
    sizes = [size for size in facts.capture_sizes if size <= max_tokens] if facts is not None else []
    if facts is None or len(sizes) < MIN_TOTALS:
        return totals
    first = {sizes[-1] + 1} if sizes[-1] < facts.step_token_capacity else set()
    return tuple(sorted({*sizes, *first, *(total for total in totals if total > sizes[-1])}))


def batch_sizes(saturation_point: int, capacity: int) -> tuple[int, ...]:
    """Sizes in tokens from the saturation point to a step's capacity, each larger by the same factor; one if equal."""
    grid = np.geomspace(min(saturation_point, capacity), capacity, _SIZES)
    return tuple(dict.fromkeys(grid.round().astype(int).tolist()))


def backlog_tokens(points: Sequence[tuple[int, float]]) -> int:
    """The smallest size with 99 % of peak throughput, interpolated between (tokens, seconds) of rising tokens."""
    most = points[-1][0]
    if len(points) < _SIZES:
        return most
    curve = fit(points, most)
    best = max(curve.throughput(size) for size, _ in points)
    enough = (size for size in range(points[0][0], most) if curve.throughput(size) >= _WORTH * best)
    return next(enough, most)


def sweep(
    engine: Measurable, totals: Sequence[int], plan: SweepPlan, clock: Callable[[], float] = time.perf_counter
) -> dict[int, list[float]]:
    """Step times in seconds by total of tokens: each round takes every total once, in a random order.

    The first round only warms up, and does not count.
    """
    rng = np.random.default_rng(_SEED)
    times: dict[int, list[float]] = {total: [] for total in totals}
    start_s = logged_s = clock()
    for round_number in range(plan.runs + 1):
        if round_number > plan.min_runs and clock() - start_s > plan.budget_s:
            break
        for total in rng.permutation(np.asarray(totals)).tolist():
            step = engine.prepare(*production_mix(total, engine.facts, rng))
            began_s = clock()
            step.execute()
            took_s = clock() - began_s
            if round_number:
                times[total].append(took_s)
        if clock() - logged_s > _LOG_EVERY_S:
            logged_s = clock()
            _log.info("measuring the saturation profile", extra={"round": round_number, "rounds": plan.runs})
    return times


def production_mix(total: int, facts: EngineFacts, rng: np.random.Generator) -> tuple[IdArray, IdArray]:
    """Random ids and lengths of queries as in production that sum to exactly `total` tokens."""
    longest = facts.max_input_tokens
    drawn = rng.choice(np.minimum(PRODUCTION_LENGTHS, longest), size=total)
    lengths = drawn[: int(np.searchsorted(np.cumsum(drawn), total)) + 1].astype(np.int32)
    lengths[-1] -= int(lengths.sum()) - total
    return rng.integers(0, facts.vocabulary_size, total, np.int32), lengths


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def summary(profile: Profile) -> dict[str, object]:
    curve = profile.curve
    threads = {} if profile.threaded_tokens is None else {"threaded_tokens": profile.threaded_tokens}
    return {
        "saturation_point": curve.saturation_point,
        "rule": curve.rule.value,
        "floor_s": curve.floor_s,
        "fixed_s": curve.fixed_s,
        "per_token_s": curve.per_token_s,
        "max_tokens": curve.max_tokens,
        "runs": profile.runs,
        **threads,
    }
