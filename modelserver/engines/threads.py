"""Compute a step that is too small for several threads with one (ADR 17)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager


class StepThreads:
    """A step of fewer than `threaded_tokens` tokens gets one of the engine's threads, a larger one all of them."""

    def __init__(self, count: int, use: Callable[[int], None]) -> None:
        """`use` sets the threads of the calling thread's next computations; between steps it stays at `count`."""
        self.count = count
        self.threaded_tokens = 0
        self._use = use

    @contextmanager
    def of(self, tokens: int) -> Generator[None]:
        if tokens >= self.threaded_tokens:
            yield
            return
        self._use(1)
        try:
            yield
        finally:
            self._use(self.count)
