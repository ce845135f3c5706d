"""Fit how long an engine step takes to how many tokens it holds, and find where more tokens stop paying."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FLOOR_OVER_FIXED = 1.2
"""A floor counts as one when it lies above this multiple of the line's intercept."""
HINGE_SHARE = 0.4
"""A floor's end is where more tokens stop paying only if it has this share of the throughput at max_tokens."""
THROUGHPUT_SHARE = 0.9
"""Without a floor: the share of the throughput at max_tokens that the saturation point must reach."""
FLAT_RISE = 1.05
"""A curve that rises less than this from one token to max_tokens is flat."""

MIN_TOTALS = 4
"""Different totals of a fit: a hinge has three parameters."""
_HUBER = 2.0  # standard deviations, beyond which a point counts less
_REWEIGHTINGS = 4  # a fifth changes the time of a step by 0.1 % on average
_MIN_SPREAD = 1e-6  # of exact figures, as those of a synthetic engine
_CONSTANT, _LINE, _HINGE = 1, 2, 3
"""Parameters of a shape, by its kind."""
_PENALTY_PER_PARAMETER = 6.0
"""The squared standard deviations that a further parameter must at least explain."""


class Rule(StrEnum):
    """The rule that gave the saturation point; part of the published profile."""

    HINGE = "hinge"
    THROUGHPUT = "throughput"
    FLAT = "flat"


@dataclass(frozen=True, slots=True)
class Curve:
    """The measured curve, as `Describe` publishes it: seconds of a step by its tokens, and the saturation point.

    t(T) = max(floor, fixed + per_token * T). `max_tokens` is the T_max of the sweep, on which the throughput rule and
    the flat rule depend (Voyage AI, figures 2 and 3). `backlog_tokens`: the size of batches above which a backlog gains
    nothing; 0 where that was not measured. `capture_sizes`: tokens, ascending, to the next of which a step is padded.
    `eager_s`: what a step above the largest of these takes at least.
    """

    floor_s: float
    fixed_s: float
    per_token_s: float
    saturation_point: int
    rule: Rule
    max_tokens: int
    backlog_tokens: int = 0
    capture_sizes: tuple[int, ...] = ()
    eager_s: float = 0.0

    def time_s(self, tokens: int) -> float:
        """Seconds of a step over `tokens` tokens."""
        floor_s, place = self.floor_s, bisect_left(self.capture_sizes, tokens)
        if place < len(self.capture_sizes):
            tokens = self.capture_sizes[place]
        elif self.capture_sizes:
            floor_s = max(floor_s, self.eager_s)
        return max(floor_s, self.fixed_s + self.per_token_s * tokens)

    def throughput(self, tokens: int) -> float:
        """Tokens per second of steps over `tokens` tokens, without a gap."""
        return tokens / self.time_s(tokens) if tokens else 0.0


def sweep_tokens(max_tokens: int, min_tokens: int = 4) -> tuple[int, ...]:
    """Token totals to measure: powers of two and their midpoints from `min_tokens` on, then `max_tokens` itself.

    Raises ValueError when fewer totals than a fit needs lie between the two.
    """
    steps = (step for power in range(max_tokens.bit_length()) for step in (2**power, 3 * 2**power // 2))
    totals = sorted({step for step in steps if min_tokens <= step < max_tokens} | {max_tokens})
    if len(totals) < MIN_TOTALS:
        raise ValueError(f"a sweep from {min_tokens} to {max_tokens} tokens has only {len(totals)} totals")
    return tuple(totals)


def fit(points: Sequence[tuple[int, float]], max_tokens: int) -> Curve:
    """Fit measured `(tokens, seconds)` points, each a median of ten runs or more, and apply the rule (Voyage AI).

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


def fit_captured(points: Sequence[tuple[int, float]], max_tokens: int, capture_sizes: tuple[int, ...]) -> Curve:
    """The fit of an engine with graphs for steps of these sizes, and how long a step above them takes at least.

    Where those steps take longer than the others let expect, the curve is that of the others, and the saturation point
    is not just above the largest graph.
    """
    largest = max(capture_sizes, default=0)
    captured = [point for point in points if point[0] <= largest]
    above = [point for point in points if point[0] > largest]
    if above and len({tokens for tokens, _ in captured}) >= MIN_TOTALS:
        curve = fit(captured, max_tokens)
        tokens, eager_s = min(above)
        if eager_s > FLAT_RISE * curve.time_s(tokens):
            curve = replace(curve, capture_sizes=capture_sizes, eager_s=eager_s)
            pays = curve.throughput(curve.saturation_point) > curve.throughput(largest)
            return curve if pays else replace(curve, saturation_point=min(curve.saturation_point, largest))
    return replace(fit(points, max_tokens), capture_sizes=capture_sizes)


class _Shape(NamedTuple):
    floor_s: float
    fixed_s: float
    per_token_s: float
    parameters: int

    def time_s(self, tokens: float) -> float:
        return max(self.floor_s, self.fixed_s + self.per_token_s * tokens)


_Points = Sequence[tuple[int, float]]
_Values = npt.NDArray[np.float64]


def _check(points: _Points, max_tokens: int) -> None:
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
    for tokens, time_s in points:
        if tokens < 1 or not 0.0 < time_s < math.inf:
            raise ValueError(f"not a measurement: {tokens} tokens in {time_s} s")
    totals = len({tokens for tokens, _ in points})
    if totals < MIN_TOTALS:
        raise ValueError(f"a fit needs {MIN_TOTALS} different token totals, not {totals}")


def _saturation_point(shape: _Shape, max_tokens: int) -> tuple[int, Rule]:
    floor_s, fixed_s, per_token_s, _ = shape
    if shape.time_s(max_tokens) < FLAT_RISE * shape.time_s(1):
        return max_tokens, Rule.FLAT
    most = max_tokens / shape.time_s(max_tokens)  # tokens/s
    if floor_s > FLOOR_OVER_FIXED * fixed_s:
        hinge = (floor_s - fixed_s) / per_token_s
        if hinge >= HINGE_SHARE * most * floor_s:
            return max(1, round(hinge)), Rule.HINGE
    wanted = THROUGHPUT_SHARE * most  # T >= wanted * t(T), on both branches
    tokens = max(wanted * floor_s, wanted * fixed_s / (1.0 - wanted * per_token_s))
    return min(max_tokens, max(1, math.ceil(tokens))), Rule.THROUGHPUT


def _robust_shape(points: _Points) -> _Shape:
    weights = [1.0 / time_s**2 for _, time_s in points]
    for _ in range(_REWEIGHTINGS):
        shape = _best_shape(points, weights)
        limit = _HUBER * _spread(points, shape)
        weights = [
            limit / max(limit, abs(time_s / fitted_s - 1.0)) / fitted_s**2
            for (_, time_s), fitted_s in ((point, shape.time_s(point[0])) for point in points)
        ]
    return _best_shape(points, weights)


def _spread(points: _Points, shape: _Shape) -> float:
    """A robust standard deviation of the relative errors."""
    errors = (abs(time_s / shape.time_s(tokens) - 1.0) for tokens, time_s in points)
    return max(_MIN_SPREAD, 1.4826 * median(errors))


def _best_shape(points: _Points, weights: Sequence[float]) -> _Shape:
    best: dict[int, tuple[float, _Shape]] = {}
    for shape in _candidates(points, weights):
        errors = (weight * (shape.time_s(tokens) - s) ** 2 for (tokens, s), weight in zip(points, weights, strict=True))
        found = sum(errors), shape
        best[shape.parameters] = min(best.get(shape.parameters, found), found)
    noise = _spread(points, min(best.values())[1]) ** 2
    return min((loss / noise + _PENALTY_PER_PARAMETER * shape.parameters, shape) for loss, shape in best.values())[1]


def _candidates(points: _Points, weights: Sequence[float]) -> Iterator[_Shape]:
    """The best shape of each kind, and for a hinge between each two neighbouring totals."""
    tokens, times_s = np.array(points, np.float64).T
    weight = np.array(weights)
    constant_s = float(np.average(times_s, weights=weight))
    yield _Shape(constant_s, constant_s, 0.0, _CONSTANT)
    fixed_s, per_token_s = _line(tokens, times_s, weight)
    yield _Shape(fixed_s, fixed_s, per_token_s, _LINE)
    totals = sorted({tokens for tokens, _ in points})
    for left, right in pairwise(totals[:-1]):  # a hinge needs two totals on its slope
        flat = tokens <= left
        floor_s = float(np.average(times_s[flat], weights=weight[flat]))
        fixed_s, per_token_s = _line(tokens[~flat], times_s[~flat], weight[~flat])
        if not fixed_s + per_token_s * left <= floor_s <= fixed_s + per_token_s * right:
            # else with the hinge at the left one of the two
            floor_s, per_token_s = _line(np.maximum(0.0, tokens - left), times_s, weight)
            per_token_s = min(per_token_s, floor_s / left)
            fixed_s = floor_s - per_token_s * left
        yield _Shape(floor_s, fixed_s, per_token_s, _HINGE)


def _line(x: _Values, y: _Values, weight: _Values) -> tuple[float, float]:
    """Weighted least squares of y = a + b * x, neither of them negative."""
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    slope = max(0.0, float(weight @ ((x - mean_x) * (y - mean_y)) / (weight @ (x - mean_x) ** 2)))
    fixed = float(mean_y - slope * mean_x)
    return (fixed, slope) if fixed >= 0.0 else (0.0, float(weight @ (x * y) / (weight @ x**2)))
