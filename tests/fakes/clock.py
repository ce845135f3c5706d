"""An event loop whose time jumps to the next timer whenever nothing else is left to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from typing_extensions import override

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Advances the time instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("Everything waits, and for no time: this test would hang.")
        events = super().select(0)
        if not events:
            self.now_s += max(0.0, timeout)
        return events


class AutojumpLoop(asyncio.SelectorEventLoop):
    """Virtual time: `sleep(3600)` takes no time at all."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    @override
    def time(self) -> float:
        return self._jumping.now_s


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test in virtual time."""
    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        return runner.run(work)
