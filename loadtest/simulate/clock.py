"""Virtual time: what is to happen, in order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

import numpy as np

from loadtest.simulate.curves import StepTimes

_BLOCK = 8192


class Clock:
    """Events by time; those of the same time happen in the order in which they were requested."""

    __slots__ = ("_events", "_order", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0

    def at(self, time_s: float, act: Callable[[Any], None], argument: Any = None) -> None:
        """Call `act(argument)` at a time."""
        self._order += 1
        heappush(self._events, (time_s, self._order, act, argument))

    def next_s(self) -> float:
        """When something happens next; `inf` for never."""
        return self._events[0][0] if self._events else inf

    def step(self) -> None:
        """Let the next thing happen."""
        self.now_s, _, act, argument = heappop(self._events)
        act(argument)


class Noise:
    """Random factors and delays, drawn in blocks because one at a time is slow."""

    __slots__ = ("_delays", "_factors", "_rng", "_sigma", "_step_times")

    def __init__(self, rng: np.random.Generator, sigma: float, step_times: StepTimes | None = None) -> None:
        """`sigma`: standard deviation of a step's time, as a share (lognormal, of median 1); none with `step_times`."""
        self._rng = rng
        self._sigma = sigma
        self._step_times = step_times
        self._factors: list[float] = []
        self._delays: list[float] = []

    def factor(self, tokens: int) -> float:
        """The factor for the time of a step of this many tokens."""
        known = self._step_times
        if not self._factors:
            drawn = np.exp(self._sigma * self._rng.standard_normal(_BLOCK)).tolist()
            self._factors = drawn if known is None else list(known.factors[::-1])
        factor = self._factors.pop()
        return factor if known is None else factor * known.usual_factor(tokens)

    def delay(self) -> float:
        """One way through the network, of mean 1: at least half of that, with an exponential tail."""
        if not self._delays:
            self._delays = (0.5 + self._rng.exponential(0.5, _BLOCK)).tolist()
        return self._delays.pop()

    def uniform(self) -> float:
        return float(self._rng.random())
