"""Queue records with large values separately, so that small ones do not wait while they are decoded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aggregator.sources.kafka.committed_offset import InFlightRecord

LARGE_BYTES = 16 * 1024
"""Values from this size on are decoded outside the event loop: JSON takes 20 us a record, and more for each KiB."""
_MOST_WAITING_BYTES = 64 * 1024 * 1024
_TAKEN_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Fetched:
    """A record, and when it was fetched, by the monotonic clock and by the wall clock."""

    in_flight: InFlightRecord
    received_s: float
    wall_s: float


def size_bytes(in_flight: InFlightRecord) -> int:
    return len(in_flight.value or b"")


class LargeRecords:
    """Large records in their order; those of paused topics wait while others are taken.

    Above a limit in bytes the topics of all that wait are `full`; `on_full_changed` receives each change.
    """

    def __init__(self, on_full_changed: Callable[[], None]) -> None:
        self.full: frozenset[str] = frozenset()
        self.paused: frozenset[str] = frozenset()
        self._on_full_changed = on_full_changed
        self._waiting: deque[Fetched] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, records: Sequence[Fetched]) -> None:
        if records and not self._closed:
            self._waiting += records
            self._bytes += _sum_bytes(records)
            self._counted()

    async def take(self) -> Sequence[Fetched]:
        """The next few of topics that are not paused, at least one; none once `close` was called. For one caller."""
        while not (taken := self._next()) and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return taken

    def pause(self, topics: frozenset[str]) -> None:
        self.paused = topics
        self._changed.set()

    def drop_fenced(self) -> None:
        """Forget the records of revoked partitions: their new owner processes them."""
        self._waiting = deque(each for each in self._waiting if not each.in_flight.committed_offset.fenced)
        self._bytes = _sum_bytes(self._waiting)
        self._counted()

    def close(self) -> None:
        """Hand out nothing further: the next consumer processes what waits."""
        self._closed = True
        self._waiting.clear()
        self._bytes = 0
        self._counted()

    def _next(self) -> Sequence[Fetched]:
        taken: list[Fetched] = []
        passed: list[Fetched] = []
        room = _TAKEN_BYTES
        while self._waiting and (not taken or size_bytes(self._waiting[0].in_flight) <= room):
            each = self._waiting.popleft()
            if each.in_flight.committed_offset.topic in self.paused:
                passed.append(each)
            else:
                taken.append(each)
                room -= size_bytes(each.in_flight)
        self._waiting.extendleft(reversed(passed))
        if taken:
            self._bytes -= _sum_bytes(taken)
            self._counted()
        return taken

    def _counted(self) -> None:
        self._changed.set()
        full: frozenset[str] = frozenset()
        if self._bytes >= _MOST_WAITING_BYTES:
            full = frozenset(each.in_flight.committed_offset.topic for each in self._waiting)
        if full != self.full:
            self.full = full
            self._on_full_changed()


def _sum_bytes(records: Iterable[Fetched]) -> int:
    return sum(size_bytes(each.in_flight) for each in records)
