"""Batch calls while no model server could take them: admitted together they cost less each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aggregator.request import Request

LONGEST_S = 0.01
"""How long a call waits for others at the most, and so for a refusal."""
ENOUGH_INPUTS = 64
"""More of them would hardly cost less each, and would be counted when a server already waits."""


class CallBatcher:
    """Calls on their way into the queue. While some are being admitted, those that come meanwhile are batched."""

    def __init__(self, turn_s: Callable[[float], float], clock: Callable[[], float] = time.monotonic) -> None:
        """`turn_s` says when a server takes its next batch, as seen from a moment (both monotonic seconds)."""
        self._turn_s = turn_s
        self._clock = clock
        self._calls: list[Request] = []
        self._inputs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = asyncio.Event()
        self._admitting = False
        self._closed = False

    async def receive(self) -> list[Request]:
        """The next calls, when their time has come; none once closed."""
        self._admitting = False
        await self._due.wait()
        if not self._closed:
            self._due.clear()
        self._admitting = True
        calls, self._calls, self._inputs = self._calls, [], 0
        return calls

    def add(self, call: Request) -> None:
        """Take a call; it is received when a server could take it, when enough have come, or after `LONGEST_S`."""
        self._calls.append(call)
        self._inputs += len(call.inputs)
        if self._admitting or self._inputs >= ENOUGH_INPUTS:
            self.receive_now()
        elif self._timer is None:
            now_s = self._clock()
            wait_s = min(LONGEST_S, max(0.0, self._turn_s(now_s) - now_s))
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.receive_now)

    def receive_now(self) -> None:
        """Let what is batched be received now, as when a server became less busy."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            self._due.set()

    def close(self) -> None:
        """No more calls come."""
        self._closed = True
        self._due.set()
