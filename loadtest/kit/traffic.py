"""Traffic: so many requests at a time, or so many a second, each sent by the caller's own way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]
_TICK_S = 0.005


async def paced(count: int, per_s: float | None, chunk: int) -> AsyncIterator[range]:
    """The numbers 0 to `count` in ranges of at most `chunk`, each when it is due.

    A sender that falls behind the rate catches up: the n-th query is due at n / `per_s` seconds, whatever went before.
    """
    start_s = time.monotonic()
    sent = 0
    while sent < count:
        due = count if per_s is None else min(count, int((time.monotonic() - start_s) * per_s) + 1)
        if due == sent:
            assert per_s, "Without a rate all is due at once. This is a bug."
            await asyncio.sleep(max(_TICK_S, sent / per_s - (time.monotonic() - start_s)))
            continue
        end = min(due, sent + chunk)
        yield range(sent, end)
        sent = end


async def closed_loop(count: int, callers: int, per_call: int, call: Callable[[range], Awaitable[None]]) -> None:
    """The numbers 0 to `count` by calls of `per_call`, so many at a time; each caller waits for its answer."""
    starts = iter(range(0, count, per_call))

    async def call_on() -> None:
        for start in starts:
            await call(range(start, min(start + per_call, count)))

    async with asyncio.TaskGroup() as tasks:
        for caller in range(callers):
            tasks.create_task(call_on(), name=f"caller-{caller}")


async def open_loop(due_s: Sequence[float], per_call: int, call: Callable[[range], Coroutine[Any, Any, None]]) -> None:
    """Calls of `per_call` numbers each, so many seconds from now, whether or not earlier ones are answered."""
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, at_s in enumerate(due_s):
            await asyncio.sleep(max(0.0, at_s - (time.monotonic() - began_s)))
            tasks.create_task(call(range(number * per_call, (number + 1) * per_call)))
