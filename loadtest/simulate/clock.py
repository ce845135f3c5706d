"""Virtual time: what is to happen, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

import numpy as np

_BLOCK = 8192


class Clock:
    """Events by time; those of the same time happen in the order in which they were asked for."""

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

    __slots__ = ("_delays", "_factors", "_replayed", "_rng", "_sigma")

    def __init__(self, rng: np.random.Generator, sigma: float, replayed: Sequence[float] = ()) -> None:
        """`sigma`: standard deviation of a step's time, as a share (lognormal, of median 1).

        With `replayed`, steps take these factors in their order, over and over, and none is drawn.
        """
        self._rng = rng
        self._sigma = sigma
        self._replayed = replayed[::-1]
        self._factors: list[float] = []
        self._delays: list[float] = []

    def factor(self) -> float:
        """What a step's time is multiplied by."""
        if not self._factors:
            drawn = self._replayed or np.exp(self._sigma * self._rng.standard_normal(_BLOCK)).tolist()
            self._factors = list(drawn)
        return self._factors.pop()

    def delay(self) -> float:
        """One way through the network, of mean 1: at least half of that, with an exponential tail."""
        if not self._delays:
            self._delays = (0.5 + self._rng.exponential(0.5, _BLOCK)).tolist()
        return self._delays.pop()

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return float(self._rng.random())
