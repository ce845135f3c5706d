"""How fast one model server computes: its curve, and how its steps compare with it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.rates import LiveScale

UNMEASURED = Curve(0.0, 0.005, 5e-5, 512, Rule.THROUGHPUT, 8192)
"""Of a server that has not measured itself: a guess that its first reply corrects."""


class Speed:
    """The curve that a server measured, or a guess, times a factor that follows the steps that it reports."""

    __slots__ = ("_curve", "_guessed", "_scale")

    def __init__(self, measured: Curve | None) -> None:
        self._curve = measured or UNMEASURED
        self._guessed = measured is None
        self._scale = LiveScale()

    @property
    def curve(self) -> Curve | None:
        """The curve that the server measured, or that follows from its first reply; None before both."""
        return None if self._guessed else self._curve

    @property
    def scale(self) -> float:
        """How many times slower it is than its curve."""
        return self._scale.value

    def step_time_s(self, tokens: int) -> float:
        return self._curve.time_s(tokens) * self._scale.value

    def snapped(self, tokens: int, most: int) -> int:
        """The size near `tokens`, at most `most`, with the highest throughput."""
        return self._curve.snapped(tokens, most)

    def tokens_within(self, seconds: float, most: int) -> int:
        """The predicted number of tokens in a step of this many seconds, at most `most`."""
        curve = self._curve
        if curve.per_token_s <= 0.0:
            return most
        fit = (seconds / self._scale.value - curve.fixed_s) / curve.per_token_s
        tokens = int(min(most, fit))
        fits = curve.padded(tokens) <= fit and (not curve.eager_s or self.step_time_s(tokens) <= seconds)
        return tokens if fits else curve.captured_within(tokens)

    def learn(self, tokens: int, duration_s: float) -> None:
        """Learn from one step: its tokens and its seconds. The first step sets the level of a guessed curve."""
        curve = self._curve
        if self._guessed and 0.0 < duration_s < inf:
            ratio = duration_s / curve.time_s(tokens)
            self._curve = replace(curve, fixed_s=curve.fixed_s * ratio, per_token_s=curve.per_token_s * ratio)
            self._guessed = False
        else:
            self._scale.observe(duration_s, curve.time_s(tokens))
