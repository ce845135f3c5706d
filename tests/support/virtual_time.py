"""Clocks of tests: an event loop whose time jumps to the next timer, and a clock that stands where a test puts it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import wraps
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

from typing_extensions import override

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
START_S = 1000.0
_THREAD_TIMEOUT_S = 60.0


class _JumpingSelector(selectors.SelectSelector):
    """Advances the time instead of waiting for it, unless a thread works: while one does, the time stands."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S
        self.threads = 0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or (self.threads and timeout > 0):  # so only another thread's work can end the wait
            events = super().select(_THREAD_TIMEOUT_S)
            assert events, "Everything waits, and for no time: this test would hang."
            return events
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

    @override
    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        self._jumping.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_ended)
        return future

    @override
    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Join the threads without a bound of time, which would jump: Python 3.12 and later give one."""
        del timeout
        await super().shutdown_default_executor()

    def _thread_ended(self, _: object) -> None:
        self._jumping.threads -= 1


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        return runner.run(work)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """An async test that runs in virtual time."""

    @wraps(test)
    def running(*given: P.args, **named: P.kwargs) -> None:
        run(test(*given, **named))

    return running


class ManualClock:
    """Tells the time that it was given last."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
