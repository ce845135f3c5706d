"""Wait until something holds that gives no signal: another process, another thread, a metric."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


async def until(holds: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """Wait in an event loop. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


def wait_until(holds: Callable[[], Any], what: str = "", timeout_s: float = 60.0, every_s: float = 0.1) -> Any:
    """Wait without an event loop, and return what `holds` returned. Raises TimeoutError."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := holds()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(every_s)
    return found
