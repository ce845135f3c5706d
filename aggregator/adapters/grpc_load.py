"""Bound what calls may hold before their tokens are counted, and how many streams are open."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from aggregator.errors import Overloaded

_RETRY_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Requests under way, their bytes, and open streams."""

    max_calls: int
    max_pending_bytes: int
    max_streams: int


class Load:
    """What is under way. `jitter` in [0, 1) spreads the retries of those that are refused."""

    def __init__(self, limits: LoadLimits, jitter: Callable[[], float] = random.random) -> None:
        self._limits = limits
        self._jitter = jitter
        self._calls = 0
        self._bytes = 0
        self._streams = 0

    def enter(self, size_bytes: int) -> None:
        """A request comes; raises Overloaded when there is no room for it. One alone always finds room."""
        limits = self._limits
        if self._calls and (self._calls >= limits.max_calls or self._bytes + size_bytes > limits.max_pending_bytes):
            raise self._overloaded("too many requests are under way: try again later")
        self._calls += 1
        self._bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        """It is answered, or given up."""
        self._calls -= 1
        self._bytes -= size_bytes

    def open_stream(self) -> None:
        """A stream opens; raises Overloaded when there are enough."""
        if self._streams >= self._limits.max_streams:
            raise self._overloaded("too many streams are open: use one of yours for more, or try again later")
        self._streams += 1

    def close_stream(self) -> None:
        """It has ended."""
        self._streams -= 1

    def _overloaded(self, message: str) -> Overloaded:
        return Overloaded(message, _RETRY_AFTER_S * (1.0 + self._jitter()))
