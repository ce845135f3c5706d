"""Wait until something holds that gives no signal: another process, another thread, a metric."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from tests.support.patience import patient


async def until(holds: Callable[[], Any], timeout_s: float = 60.0, every_s: float = 0.01) -> Any:
    """Wait in an event loop, and return what `holds`, which may be a coroutine, returned. Raises TimeoutError."""
    async with asyncio.timeout(patient(timeout_s)):
        while True:
            found = holds()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(every_s)


async def until_beside(holds: Callable[[], Any], what: str = "", timeout_s: float = 60.0) -> Any:
    """The next one, beside the event loop: for what takes long to look at."""
    return await asyncio.to_thread(wait_until, holds, what, timeout_s)


def wait_until(holds: Callable[[], Any], what: str = "", timeout_s: float = 60.0, every_s: float = 0.1) -> Any:
    """Wait without an event loop, and return what `holds` returned. Raises TimeoutError."""
    deadline_s = time.monotonic() + patient(timeout_s)
    while not (found := holds()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {patient(timeout_s):.0f} s: {what}")
        time.sleep(every_s)
    return found
