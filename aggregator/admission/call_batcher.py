"""Gather gRPC calls while no model server could take them: admitted together they cost less each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aggregator.request import Request

LONGEST_S = 0.01
"""How long a call waits for others at the most, and so for a refusal."""
ENOUGH_INPUTS = 64
"""More of them would hardly cost less each, and would be counted when a server already waits."""


class Gathering:
    """Calls on their way into the queue. While some are being admitted, those that come meanwhile are gathered."""

    def __init__(
        self,
        admit: Callable[[list[Request]], Awaitable[None]],
        turn_s: Callable[[float], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`turn_s` says when a server takes its next batch, as seen from a moment (both monotonic seconds)."""
        self._admit = admit
        self._turn_s = turn_s
        self._clock = clock
        self._calls: list[Request] = []
        self._inputs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = asyncio.Event()
        self._admitting = False

    async def run(self) -> None:
        """Admit what is gathered whenever its time has come, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            self._admitting = True
            while calls := self._calls:
                self._calls, self._inputs = [], 0
                await self._admit(calls)
            self._admitting = False

    def add(self, call: Request) -> None:
        """Take a call; it is admitted when a server could take it, when enough have come, or after `LONGEST_S`."""
        self._calls.append(call)
        self._inputs += len(call.inputs)
        if self._admitting:
            return
        if self._inputs >= ENOUGH_INPUTS:
            self.end()
        elif self._timer is None:
            now_s = self._clock()
            wait_s = min(LONGEST_S, max(0.0, self._turn_s(now_s) - now_s))
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.end)

    def end(self) -> None:
        """Admit what was gathered now, as when a server became less busy."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            self._due.set()
