"""The thread on which whatever takes a millisecond or more is decoded, counted and encoded, one after another.

One for the process: the interpreter has one lock, and each further thread that computes makes the event loop wait
longer for it. So large messages wait for each other, and small ones for none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

SLOW_LANE = ThreadPoolExecutor(1, "slow-lane")


async def in_slow_lane(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(SLOW_LANE, work)


class TakesLong(Exception):
    """Work that was begun on the event loop turns out to be long."""


def leave_loop() -> None:
    """Raises TakesLong on the event loop's thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise TakesLong
