"""Turn out-of-order completions of one partition into an offset that is safe to commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from aggregator.sources.kafka.records import NOWHERE, Header, Record, ReplyRoute


@dataclass(slots=True, eq=False)
class InFlightRecord:
    """One record that was handed out, until the broker has acknowledged its outcome: the origin of its request.

    A consumer's own object takes twice as much memory, and as many of these wait as queries do. `unreadable` is the
    reason why the record is undecodable; then it has neither key nor value.
    """

    committed_offset: CommittedOffset
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    route: ReplyRoute = NOWHERE
    completed: bool = False
    unreadable: str = ""

    @property
    def topic(self) -> str:
        return self.committed_offset.topic

    @property
    def partition(self) -> int:
        return self.committed_offset.partition

    def progressed(self) -> None:
        if self.route.on_progress is not None:
            self.route.on_progress()


class CommittedOffset:
    """The lowest unfinished offset of one partition, for one assignment of it.

    Once fenced, its partition is revoked: completing a record has no effect, and the new owner processes the rest.
    """

    __slots__ = ("_end", "_highest_completed", "_in_flight", "fenced", "partition", "topic")

    def __init__(self, topic: str, partition: int, position: int) -> None:
        self.topic = topic
        self.partition = partition
        self.fenced = False
        self._in_flight: deque[InFlightRecord] = deque()
        self._end = position
        self._highest_completed = position - 1

    @property
    def position(self) -> int:
        """The offset to commit: everything below it is completed."""
        return self._in_flight[0].offset if self._in_flight else self._end

    @property
    def span(self) -> int:
        """Records between the commit position and the highest completed one: what a crash would replay needlessly."""
        return max(0, self._highest_completed + 1 - self.position)

    @property
    def unfinished(self) -> int:
        """Records not yet completed, or completed behind one that is not."""
        return len(self._in_flight)

    def deliver(self, record: Record) -> InFlightRecord:
        """Add the next record; offsets rise but may leave gaps (compaction, transaction markers)."""
        offset = record.offset
        assert not self.fenced, f"Offset {offset} was delivered after the fence. This is a bug."
        assert offset >= self._end, f"Offset {offset} was delivered twice ({self._end} is next). This is a bug."
        in_flight = InFlightRecord(self, offset, record.timestamp, record.key, record.value, record.headers)
        self._in_flight.append(in_flight)
        self._end = offset + 1
        return in_flight

    def skip_to(self, offset: int) -> None:
        """Skip offsets that hold no record, once everything before them is completed; no effect after the fence."""
        if not self.fenced:
            self._end = max(self._end, offset)

    def complete(self, in_flight: InFlightRecord) -> None:
        """Mark a record's outcome as acknowledged; no effect if done twice, or after the fence."""
        if in_flight.completed or self.fenced:
            return
        in_flight.completed = True
        self._highest_completed = max(self._highest_completed, in_flight.offset)
        in_flight_records = self._in_flight
        while in_flight_records and in_flight_records[0].completed:
            in_flight_records.popleft()

    def fence(self) -> tuple[InFlightRecord, ...]:
        """End with the revocation of the partition; returns the records that are not completed."""
        self.fenced = True
        self._end = self.position
        unfinished = tuple(in_flight for in_flight in self._in_flight if not in_flight.completed)
        self._in_flight.clear()
        return unfinished
