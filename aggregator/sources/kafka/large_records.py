"""Keep records with large values apart, so that no small one waits while they are read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aggregator.sources.kafka.consumer.committed_offset import InFlightRecord

LARGE_BYTES = 16 * 1024
"""From this size on a value is read beside the event loop: JSON takes 20 us a record, and more a KiB."""
_MOST_WAITING_BYTES = 64 * 1024 * 1024
_TAKEN_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Fetched:
    """A record, and when it was fetched: monotonic seconds, and the wall clock's."""

    in_flight: InFlightRecord
    received_s: float
    wall_s: float


def size_bytes(in_flight: InFlightRecord) -> int:
    """Of the record's value."""
    return len(in_flight.record.value or b"")


class LargeRecords:
    """Large records in their order; those of held topics wait, while others are taken.

    At a bound in bytes the topics of all that wait are `full`, and `on_full_changed` hears of it.
    """

    def __init__(self, on_full_changed: Callable[[], None]) -> None:
        self.full: frozenset[str] = frozenset()
        self.held: frozenset[str] = frozenset()
        self._on_full_changed = on_full_changed
        self._waiting: deque[Fetched] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, records: Sequence[Fetched]) -> None:
        """Keep these, unless `close` was called."""
        if records and not self._closed:
            self._waiting += records
            self._bytes += _sum_bytes(records)
            self._counted()

    async def take(self) -> Sequence[Fetched]:
        """The next few of topics that are not held, at least one; nothing once `close` was called. For one taker."""
        while not (taken := self._next()) and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return taken

    def hold(self, topics: frozenset[str]) -> None:
        """Hand out none of exactly these topics' records."""
        self.held = topics
        self._changed.set()

    def drop_fenced(self) -> None:
        """Forget what belongs to an assignment that is over: whoever reads it next redoes it."""
        self._waiting = deque(each for each in self._waiting if not each.in_flight.committed_offset.fenced)
        self._bytes = _sum_bytes(self._waiting)
        self._counted()

    def close(self) -> None:
        """Hand out no more: what waits is left to whoever reads it next."""
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
            if each.in_flight.committed_offset.topic in self.held:
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
        """What waits has changed."""
        self._changed.set()
        full: frozenset[str] = frozenset()
        if self._bytes >= _MOST_WAITING_BYTES:
            full = frozenset(each.in_flight.committed_offset.topic for each in self._waiting)
        if full != self.full:
            self.full = full
            self._on_full_changed()


def _sum_bytes(records: Iterable[Fetched]) -> int:
    return sum(size_bytes(each.in_flight) for each in records)
