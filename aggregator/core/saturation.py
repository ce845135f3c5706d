"""Fit how long an engine step takes to how many tokens it holds, and find where more tokens stop paying."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

FLOOR_OVER_FIXED = 1.2
"""A floor counts as one when it lies above this multiple of the line's intercept."""
THROUGHPUT_SHARE = 0.9
"""Without a floor: the share of the throughput at max_tokens that the saturation point must reach."""
FLAT_RISE = 1.05
"""A curve that rises less than this from one token to max_tokens is flat."""

_MIN_TOTALS = 4
_HUBER = 2.0
_REWEIGHTINGS = 8
_MIN_SPREAD = 1e-9
_PENALTY_PER_PARAMETER = 3.0


class Rule(StrEnum):
    """Which rule gave the saturation point; part of the published profile."""

    HINGE = "hinge"
    THROUGHPUT = "throughput"
    FLAT = "flat"


@dataclass(frozen=True, slots=True)
class Curve:
    """Step time by tokens, t(T) = max(floor, fixed + per_token * T), and its saturation point in tokens.

    `max_tokens` is the T_max of the sweep, on which the throughput rule and the flat rule depend (seed 000,
    figures 2 and 3).
    """

    floor_s: float
    fixed_s: float
    per_token_s: float
    saturation_point: int
    rule: Rule
    max_tokens: int

    def time_s(self, tokens: int) -> float:
        """Seconds that one engine step over `tokens` tokens takes."""
        return max(self.floor_s, self.fixed_s + self.per_token_s * tokens)

    def throughput(self, tokens: int) -> float:
        """Tokens per second when steps of `tokens` tokens follow each other without a gap."""
        return tokens / self.time_s(tokens) if tokens else 0.0


class LiveScale:
    """How much slower (above 1) or faster one lane runs than its curve: a robust EWMA of measured over fitted time.

    It averages logarithms, so that twice and half as fast weigh the same, and one stray step moves it by at
    most `weight * clip`. The first steps weigh more, as in a plain mean that begins with one vote for 1.0.
    """

    __slots__ = ("_clip", "_count", "_log_scale", "_weight")

    def __init__(self, weight: float = 0.1, clip: float = 0.7) -> None:
        """Weight: share of a new step once warm. Clip: the largest surprise, in natural logarithms, that counts."""
        self._weight = weight
        self._clip = clip
        self._count = 1
        self._log_scale = 0.0

    @property
    def value(self) -> float:
        """The factor to multiply fitted times by; 1.0 before any step."""
        return math.exp(self._log_scale)

    def observe(self, measured_s: float, fitted_s: float) -> None:
        """Learn from one step; a time that is not positive and finite (an engine's clock may tick too coarsely) teaches nothing."""
        if not (0.0 < measured_s < math.inf and 0.0 < fitted_s < math.inf):
            return
        self._count += 1
        surprise = math.log(measured_s / fitted_s) - self._log_scale
        weight = max(self._weight, 1.0 / self._count)
        self._log_scale += weight * max(-self._clip, min(self._clip, surprise))


def sweep_tokens(max_tokens: int, min_tokens: int = 4) -> tuple[int, ...]:
    """Token totals to measure: powers of two and their midpoints from `min_tokens` on, then `max_tokens` itself.

    Raises ValueError when fewer totals than a fit needs lie between the two.
    """
    steps = (step for power in range(max_tokens.bit_length()) for step in (2**power, 3 * 2**power // 2))
    totals = sorted({step for step in steps if min_tokens <= step < max_tokens} | {max_tokens})
    if len(totals) < _MIN_TOTALS:
        raise ValueError(f"a sweep from {min_tokens} to {max_tokens} tokens has only {len(totals)} totals")
    return tuple(totals)


def fit(points: Sequence[tuple[int, float]], max_tokens: int) -> Curve:
    """Fit measured `(tokens, seconds)` points, each best a median of at least ten runs, and apply the rule (seed 000).

    Relative least squares with Huber weights, so that a point counts by its relative error and a stray one
    little. A hinge must earn its parameters against a plain line, and a line against a constant. Neither the
    fixed part nor the slope is ever negative: times that fall with more tokens are noise. A total may occur
    several times. Raises ValueError for fewer than four different totals, for tokens below one and for times
    that are not positive and finite.
    """
    _check(points, max_tokens)
    shape = _robust_shape(sorted(points))
    saturation_point, rule = _saturation_point(shape, max_tokens)
    return Curve(shape.floor_s, shape.fixed_s, shape.per_token_s, saturation_point, rule, max_tokens)


class _Shape(NamedTuple):
    floor_s: float
    fixed_s: float
    per_token_s: float
    parameters: int

    def time_s(self, tokens: float) -> float:
        return max(self.floor_s, self.fixed_s + self.per_token_s * tokens)


_Points = Sequence[tuple[int, float]]


def _check(points: _Points, max_tokens: int) -> None:
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
    for tokens, time_s in points:
        if tokens < 1 or not 0.0 < time_s < math.inf:
            raise ValueError(f"not a measurement: {tokens} tokens in {time_s} s")
    totals = len({tokens for tokens, _ in points})
    if totals < _MIN_TOTALS:
        raise ValueError(f"a fit needs {_MIN_TOTALS} different token totals, not {totals}")


def _saturation_point(shape: _Shape, max_tokens: int) -> tuple[int, Rule]:
    floor_s, fixed_s, per_token_s, _ = shape
    if shape.time_s(max_tokens) < FLAT_RISE * shape.time_s(1):
        return max_tokens, Rule.FLAT
    if floor_s > FLOOR_OVER_FIXED * fixed_s:
        return max(1, round((floor_s - fixed_s) / per_token_s)), Rule.HINGE
    wanted = THROUGHPUT_SHARE * max_tokens / shape.time_s(max_tokens)  # tokens/s; T >= wanted * t(T), on both branches
    tokens = max(wanted * floor_s, wanted * fixed_s / (1.0 - wanted * per_token_s))
    return min(max_tokens, max(1, math.ceil(tokens))), Rule.THROUGHPUT


def _robust_shape(points: _Points) -> _Shape:
    weights = [1.0 / time_s**2 for _, time_s in points]
    for _ in range(_REWEIGHTINGS):
        shape = _best_shape(points, weights)
        errors = [time_s / shape.time_s(tokens) - 1.0 for tokens, time_s in points]
        limit = _HUBER * _spread(errors)
        weights = [
            min(1.0, limit / max(abs(error), limit)) / shape.time_s(tokens) ** 2
            for error, (tokens, _) in zip(errors, points, strict=True)
        ]
    return _best_shape(points, weights)


def _spread(errors: Sequence[float]) -> float:
    return max(_MIN_SPREAD, 1.4826 * median(abs(error) for error in errors))


def _best_shape(points: _Points, weights: Sequence[float]) -> _Shape:
    best: dict[int, tuple[float, _Shape]] = {}
    for shape in _candidates(points, weights):
        loss = sum(
            weight * (time_s - shape.time_s(tokens)) ** 2
            for weight, (tokens, time_s) in zip(weights, points, strict=True)
        )
        if shape.parameters not in best or loss < best[shape.parameters][0]:
            best[shape.parameters] = (loss, shape)
    richest = min(best.values())[1]
    noise = _spread([time_s / richest.time_s(tokens) - 1.0 for tokens, time_s in points]) ** 2
    return min(
        (loss / (2.0 * noise) + _PENALTY_PER_PARAMETER * shape.parameters, shape) for loss, shape in best.values()
    )[1]


def _candidates(points: _Points, weights: Sequence[float]) -> Iterator[_Shape]:
    constant_s = _mean(points, weights)
    yield _Shape(constant_s, constant_s, 0.0, 1)
    fixed_s, per_token_s = _line(points, weights)
    yield _Shape(fixed_s, fixed_s, per_token_s, 2)
    for split, ((left, _), (right, _)) in enumerate(pairwise(points), start=1):
        if left == right or right == points[-1][0]:  # a hinge needs two totals on its slope
            continue
        floor_s = _mean(points[:split], weights[:split])
        fixed_s, per_token_s = _line(points[split:], weights[split:])
        if floor_s > fixed_s and fixed_s + per_token_s * left <= floor_s <= fixed_s + per_token_s * right:
            yield _Shape(floor_s, fixed_s, per_token_s, 3)
        lifted = [(max(0, tokens - left), time_s) for tokens, time_s in points]
        floor_s, per_token_s = _line(lifted, weights)
        per_token_s = min(per_token_s, floor_s / left)
        yield _Shape(floor_s, floor_s - per_token_s * left, per_token_s, 3)


def _mean(points: _Points, weights: Sequence[float]) -> float:
    return sum(weight * time_s for weight, (_, time_s) in zip(weights, points, strict=True)) / sum(weights)


def _line(points: _Points, weights: Sequence[float]) -> tuple[float, float]:
    """Weighted least squares of fixed + per_token * T, neither of them negative."""
    total = sum(weights)
    mean_tokens = sum(weight * tokens for weight, (tokens, _) in zip(weights, points, strict=True)) / total
    mean_s = _mean(points, weights)
    spread = together = square = 0.0
    for weight, (tokens, time_s) in zip(weights, points, strict=True):
        spread += weight * (tokens - mean_tokens) ** 2
        together += weight * (tokens - mean_tokens) * (time_s - mean_s)
        square += weight * tokens**2
    per_token_s = max(0.0, together / spread)
    if per_token_s * mean_tokens <= mean_s:
        return mean_s - per_token_s * mean_tokens, per_token_s
    return 0.0, total * mean_tokens * mean_s / square + together / square
