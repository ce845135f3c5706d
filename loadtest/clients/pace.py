"""Say how many queries are due, at a fixed rate or as fast as they go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

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
