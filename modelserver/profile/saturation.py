"""Fit how long an engine step takes to how many tokens it holds, and find where more tokens stop paying."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from protos.modelserver.v1.curve import Curve, Rule

FLOOR_OVER_FIXED = 1.2
"""A floor counts as one when it lies above this multiple of the line's intercept."""
HINGE_SHARE = 0.4
"""A floor's end is where more tokens stop paying only if it has this share of the throughput at max_tokens."""
THROUGHPUT_SHARE = 0.9
"""Without a floor: the share of the throughput at max_tokens that the saturation point must reach."""
FLAT_RISE = 1.05
"""A curve that rises less than this from one token to max_tokens is flat."""

_MIN_TOTALS = 4
_HUBER = 2.0
_REWEIGHTINGS = 4
_MIN_SPREAD = 1e-6
_CONSTANT, _LINE, _HINGE = 1, 2, 3
"""Parameters of a shape, by its kind."""
_PENALTY_PER_PARAMETER = 6.0
"""In squared standard deviations: so much must a further parameter explain."""


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
    """Fit measured `(tokens, seconds)` points, each best a median of at least ten runs, and apply the rule (Voyage AI).

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
    for loss, shape in _candidates(points, weights):
        if shape.parameters not in best or loss < best[shape.parameters][0]:
            best[shape.parameters] = (loss, shape)
    noise = _spread(points, min(best.values())[1]) ** 2
    return min((loss / noise + _PENALTY_PER_PARAMETER * shape.parameters, shape) for loss, shape in best.values())[1]


def _candidates(points: _Points, weights: Sequence[float]) -> Iterator[tuple[float, _Shape]]:
    """The best shape of each kind, and for a hinge between each two neighbouring totals, with its weighted loss."""
    moments = [_Moments(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)]
    for (tokens, time_s), weight in zip(points, weights, strict=True):
        moments.append(moments[-1].plus(_moments(tokens, time_s, weight)))
    every = moments[-1]
    constant_s = every.y / every.weight
    yield every.loss(constant_s, 0.0), _Shape(constant_s, constant_s, 0.0, _CONSTANT)
    fixed_s, per_token_s = every.line()
    yield every.loss(fixed_s, per_token_s), _Shape(fixed_s, fixed_s, per_token_s, _LINE)
    for split, ((left, _), (right, _)) in enumerate(pairwise(points), start=1):
        if left == right or right == points[-1][0]:  # a hinge needs two totals on its slope
            continue
        flat, sloping = moments[split], every.minus(moments[split])
        floor_s = flat.y / flat.weight
        fixed_s, per_token_s = sloping.line()
        if fixed_s + per_token_s * left <= floor_s <= fixed_s + per_token_s * right:
            shape = _Shape(floor_s, fixed_s, per_token_s, _HINGE)
            yield flat.loss(floor_s, 0.0) + sloping.loss(fixed_s, per_token_s), shape
            continue
        lifted = flat.collapsed().plus(sloping.shifted(left))  # else with the hinge at the left one of the two
        floor_s, per_token_s = lifted.line()
        per_token_s = min(per_token_s, floor_s / left)
        yield lifted.loss(floor_s, per_token_s), _Shape(floor_s, floor_s - per_token_s * left, per_token_s, _HINGE)


class _Moments(NamedTuple):
    """Weighted sums over points (x tokens, y seconds), from which lines and their losses follow."""

    weight: float
    x: float
    y: float
    xx: float
    xy: float
    yy: float

    def plus(self, other: _Moments) -> _Moments:
        return _Moments(*map(operator.add, self, other))

    def minus(self, other: _Moments) -> _Moments:
        return _Moments(*map(operator.sub, self, other))

    def collapsed(self) -> _Moments:
        """The same points, all at x = 0."""
        return self._replace(x=0.0, xx=0.0, xy=0.0)

    def shifted(self, left: float) -> _Moments:
        """The same points, `left` closer to x = 0."""
        return self._replace(
            x=self.x - left * self.weight,
            xx=self.xx - 2.0 * left * self.x + left**2 * self.weight,
            xy=self.xy - left * self.y,
        )

    def line(self) -> tuple[float, float]:
        """Least squares of y = a + b * x, neither of them negative."""
        slope = (self.weight * self.xy - self.x * self.y) / (self.weight * self.xx - self.x**2)
        slope = max(0.0, slope)
        if slope * self.x <= self.y:
            return (self.y - slope * self.x) / self.weight, slope
        return 0.0, self.xy / self.xx

    def loss(self, fixed: float, slope: float) -> float:
        """Weighted sum of squared errors of y = fixed + slope * x."""
        return (
            self.yy
            - 2.0 * (fixed * self.y + slope * self.xy)
            + fixed**2 * self.weight
            + 2.0 * fixed * slope * self.x
            + slope**2 * self.xx
        )


def _moments(x: float, y: float, weight: float) -> _Moments:
    return _Moments(weight, weight * x, weight * y, weight * x * x, weight * x * y, weight * y * y)
