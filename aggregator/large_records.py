"""Keep records with large values apart, so that no small one waits while they are read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from aggregator.core.watermark import Lease

LARGE_BYTES = 16 * 1024
"""From this size on a value is read beside the event loop: JSON takes 20 us a record, and more a KiB."""
_MOST_WAITING_BYTES = 64 * 1024 * 1024
_TAKEN_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Fetched:
    """A record, and when it was fetched: monotonic seconds, and the wall clock's."""

    lease: Lease
    received_s: float
    wall_s: float


def size_bytes(lease: Lease) -> int:
    """Of the record's value."""
    return len(lease.record.value or b"")


class LargeRecords:
    """Large records in their order, bounded in bytes."""

    def __init__(self) -> None:
        self._waiting: deque[Fetched] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = asyncio.Event()

    async def room(self) -> None:
        """Until there is room for more."""
        while self._bytes >= _MOST_WAITING_BYTES:
            await self._change()

    def put(self, records: Sequence[Fetched]) -> None:
        """Keep these."""
        self._waiting += records
        self._bytes += sum(size_bytes(each.lease) for each in records)
        self._changed.set()

    async def take(self) -> Sequence[Fetched]:
        """The next few, at least one; nothing once `close` was called and all are taken. For one taker."""
        while not self._waiting and not self._closed:
            await self._change()
        taken: list[Fetched] = []
        room = _TAKEN_BYTES
        while self._waiting and (not taken or size_bytes(self._waiting[0].lease) <= room):
            taken.append(self._waiting.popleft())
            room -= size_bytes(taken[-1].lease)
            self._bytes -= size_bytes(taken[-1].lease)
        self._changed.set()
        return taken

    def close(self) -> None:
        """No more will come."""
        self._closed = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
