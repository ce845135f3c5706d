"""Batch calls while every model server is busy: admitted together they cost less each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aggregator.request.request import Request

LONGEST_S = 0.01
"""The longest that a call waits for others, and so for a refusal."""
ENOUGH_INPUTS = 64
"""A larger batch hardly costs less for each call, and a server could wait for it."""


class CallBatcher:
    """Calls that wait for admission. Those that come while others are being admitted form the next batch."""

    def __init__(self, turn_s: Callable[[float], float], clock: Callable[[], float] = time.monotonic) -> None:
        """`turn_s`: when a server takes its next batch, given the present time (both monotonic seconds)."""
        self._turn_s = turn_s
        self._clock = clock
        self._calls: list[Request] = []
        self._inputs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = asyncio.Event()
        self._admitting = False
        self._closed = False

    async def receive(self) -> list[Request]:
        """The next batch of calls, once it is due; empty after `close`."""
        self._admitting = False
        await self._due.wait()
        if not self._closed:
            self._due.clear()
        self._admitting = True
        calls, self._calls, self._inputs = self._calls, [], 0
        return calls

    def add(self, call: Request) -> None:
        """Add a call. Its batch is due when a server is free, when it is large enough, or after `LONGEST_S`."""
        self._calls.append(call)
        self._inputs += len(call.inputs)
        if self._admitting or self._inputs >= ENOUGH_INPUTS:
            self.receive_now()
        elif self._timer is None:
            now_s = self._clock()
            wait_s = min(LONGEST_S, max(0.0, self._turn_s(now_s) - now_s))
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.receive_now)

    def receive_now(self) -> None:
        """Make the batch due now, as when a server became free."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            self._due.set()

    def close(self) -> None:
        self._closed = True
        self._due.set()
