"""One partition's records from fetch to commit: out-of-order completions become an offset that is safe to commit."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

from aiokafka import TopicPartition

from aggregator.sources.kafka.answered import EXPIRED, Answer, Answered, Span, spans

_RESUME_SHARE = 0.75  # below the cap, so that a partition does not pause and resume at every commit
_RECORD_BYTES = 600  # of the objects for a record without an input: the record, its request, its reply's headers
_HEADER_BYTES = 150  # of a header's objects

Header = tuple[str, bytes]


class Record(Protocol):
    """One Kafka record as it was read; an aiokafka ConsumerRecord is one."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


def sizes_bytes(records: Sequence[Record]) -> list[int]:
    """The memory of each record that has arrived: its value twice, as the texts in it are made beside it."""
    return [
        _RECORD_BYTES
        + 2 * len(record.value or b"")
        + len(record.key or b"")
        + (_headers_bytes(record.headers) if record.headers else 0)
        for record in records
    ]


def _headers_bytes(headers: Sequence[Header]) -> int:
    return sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)


@dataclass(slots=True, eq=False)
class RawRecord:
    """A Record that aiokafka does not decode; `unreadable` is the reason, empty if this one is good."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    unreadable: str = ""


@dataclass(slots=True, eq=False)
class InFlightRecord:
    """One record that was handed out, until the broker has acknowledged its outcome.

    Half the size of aiokafka's ConsumerRecord: one is held for each query in flight. `unreadable` is the
    reason why the record is undecodable; then it has neither key nor value. `held_bytes`: the memory of the record, of
    what was made of it and, once it is admitted, of its reply; `admitted_bytes`: of these what its admission added.
    `answer`: how it was completed, if that says how a replay is to be answered.
    """

    committed_offset: CommittedOffset
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    completed: bool = False
    unreadable: str = ""
    held_bytes: int = 0
    admitted_bytes: int = 0
    answer: Answer | None = None

    @property
    def replay(self) -> bool:
        """Whether it may have been answered before."""
        return self.offset <= self.committed_offset.answered_before.highest

    @property
    def topic(self) -> str:
        return self.committed_offset.topic

    @property
    def partition(self) -> int:
        return self.committed_offset.partition


@dataclass(frozen=True, slots=True)
class Fetched:
    """A record, and when it was fetched, by the monotonic clock and by the wall clock."""

    in_flight: InFlightRecord
    received_s: float
    wall_s: float


OnFenced = Callable[[Sequence[InFlightRecord]], None]
"""Receives the records that were not complete when their partition was revoked: the new owner processes them."""


class CommittedOffset:
    """The lowest unfinished offset of one partition, for one assignment of it, and the memory of its records.

    Once fenced, its partition is revoked: completing a record has no effect, and the new owner processes the rest.
    `held_bytes`: of all records from their fetch until they are completed; `admitted_bytes`: as of a record.
    `answered_before`: what the commit from which this one goes on says of records behind it. `topic_id`: tells a topic
    from one of its name that was deleted; empty where the broker has no ids.
    """

    __slots__ = (
        "_answers",
        "_end",
        "_highest_completed",
        "_in_flight",
        "admitted_bytes",
        "answered_before",
        "fenced",
        "held_bytes",
        "partition",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, partition: int, position: int, metadata: str = "", topic_id: str = "") -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.answered_before = Answered.of(metadata, position)
        self._answers: Counter[Answer] = Counter()
        self.fenced = False
        self.held_bytes = self.admitted_bytes = 0
        self._in_flight: deque[InFlightRecord] = deque()
        self._end = position
        self._highest_completed = position - 1

    @property
    def highest(self) -> int:
        """The highest offset that is completed, now or before: records up to it may have been answered."""
        return max(self._highest_completed, self.answered_before.highest)

    @property
    def metadata(self) -> str:
        """What its next commit carries; empty if nothing behind its position may have been answered."""
        position, before = self.position, self.answered_before
        if self.highest < position:
            return ""
        found = list(before.spans) if before.highest >= position else []
        if len(self._answers) == 1 and not found and EXPIRED not in self._answers:
            found = [Span(position, self._highest_completed, *self._answers)]
        elif self._answers:
            found += spans((each.offset, each.answer) for each in reversed(self._in_flight))
        return Answered(self.highest, tuple(sorted(found))).metadata(position)

    @property
    def position(self) -> int:
        """The offset to commit: everything below it is completed."""
        return self._in_flight[0].offset if self._in_flight else self._end

    @property
    def span(self) -> int:
        """Records from the commit position to the highest completed one: a crash would replay them needlessly."""
        return max(0, self._highest_completed + 1 - self.position)

    @property
    def unfinished(self) -> int:
        """Records not yet completed, or completed behind one that is not."""
        return len(self._in_flight)

    def deliver(self, record: Record, held_bytes: int = 0) -> InFlightRecord:
        """Add the next record; offsets rise but may leave gaps (compaction, transaction markers)."""
        offset = record.offset
        assert not self.fenced, f"Offset {offset} was delivered after the fence. This is a bug."
        assert offset >= self._end, f"Offset {offset} was delivered twice ({self._end} is next). This is a bug."
        in_flight = InFlightRecord(self, offset, record.timestamp, record.key, record.value, record.headers)
        in_flight.held_bytes = held_bytes
        self._in_flight.append(in_flight)
        self._end = offset + 1
        return in_flight

    def skip_to(self, offset: int) -> None:
        """Skip offsets that hold no record, once everything before them is completed; no effect after the fence."""
        if not self.fenced:
            self._end = max(self._end, offset)

    def complete(self, in_flight: InFlightRecord, answer: Answer | None = None) -> None:
        """Mark a record's outcome as acknowledged; no effect if done twice, or after the fence."""
        if in_flight.completed or self.fenced:
            return
        in_flight.completed = True
        self.held_bytes -= in_flight.held_bytes
        self.admitted_bytes -= in_flight.admitted_bytes
        self._highest_completed = max(self._highest_completed, in_flight.offset)
        in_flight_records = self._in_flight
        if answer is not None and in_flight_records[0] is not in_flight:  # else the commit itself says enough
            in_flight.answer = answer
            self._answers[answer] += 1
        while in_flight_records and in_flight_records[0].completed:
            passed = in_flight_records.popleft().answer
            if passed is not None:
                self._answers[passed] -= 1
                if not self._answers[passed]:
                    del self._answers[passed]
        if in_flight_records and in_flight.offset > in_flight_records[0].offset:
            in_flight.key = in_flight.value = None  # it may wait for long for the records before it
            in_flight.headers = ()

    def fence(self) -> tuple[InFlightRecord, ...]:
        """End with the revocation of the partition; returns the records that are not completed."""
        self.fenced = True
        self._end = self.position
        unfinished = tuple(in_flight for in_flight in self._in_flight if not in_flight.completed)
        self._in_flight.clear()
        return unfinished


class Committed(NamedTuple):
    """What a group has of a partition: its offset (-1: none), the metadata beside it; and the id of the topic."""

    offset: int
    metadata: str = ""
    topic_id: str = ""


class Fault(Enum):
    """Why a fetch cannot continue at the position of a partition."""

    OUT_OF_RANGE = auto()
    UNDECODABLE = auto()
    """aiokafka cannot decode a record there; or in another partition, as the error does not always name it."""


class Partition:
    """One partition whose start position is known, during one assignment of it.

    `fetched` are records that wait to be handed out, `read_to` is the next offset to fetch, `delivered_to` the next to
    hand out, `committed` what the group is known to have (None: nothing yet), and `committed_highest` the highest
    offset that its metadata names. One with a `fault` is not fetched until that is handled.
    """

    def __init__(
        self, tp: TopicPartition, offset: int, committed: int | None, metadata: str = "", topic_id: str = ""
    ) -> None:
        self.tp = tp
        self.committed_offset = CommittedOffset(tp.topic, tp.partition, offset, metadata, topic_id)
        self.committed = committed
        self.committed_highest = self.committed_offset.highest
        self.fetched: list[Record] = []
        self._fetched_bytes: list[int] = []
        self.read_to = self.delivered_to = offset
        self.log_end = 0
        self.over_span = False
        self.fault: Fault | None = None
        self.blocked_until_s = 0.0

    def deliver(self) -> list[InFlightRecord]:
        """Hand out what was fetched; offsets up to `read_to` that held no record count as completed after it."""
        deliver = self.committed_offset.deliver
        in_flight_records = list(map(deliver, self.fetched, self._fetched_bytes))
        if self.fetched and isinstance(self.fetched[0], RawRecord):
            for in_flight, record in zip(in_flight_records, self.fetched, strict=True):
                if isinstance(record, RawRecord):
                    in_flight.unreadable = record.unreadable
        self.fetched, self._fetched_bytes = [], []
        self.skip_to(self.read_to)
        return in_flight_records

    def skip_to(self, offset: int) -> None:
        """Skip offsets that will never hold a record."""
        self.committed_offset.skip_to(offset)
        self.read_to = max(self.read_to, offset)
        self.delivered_to = max(self.delivered_to, offset)

    def buffer(self, records: Sequence[Record], offset: int) -> None:
        """Keep what was fetched up to `offset` until it is handed out; without records, skip to there."""
        if records:
            sizes = sizes_bytes(records)
            self.fetched += records
            self._fetched_bytes += sizes
            self.committed_offset.held_bytes += sum(sizes)
            self.read_to = max(records[-1].offset + 1, offset)
        elif not self.fetched:
            self.skip_to(offset)

    def watch_span(self, max_commit_span: int) -> None:
        """Pause above the cap; resume only once well below it. Unfinished records count too."""
        limit = max_commit_span * _RESUME_SHARE if self.over_span else max_commit_span
        self.over_span = max(self.committed_offset.span, self.committed_offset.unfinished) > limit

    @property
    def moved(self) -> bool:
        """Whether there is something to commit: a position, or that more of the records behind it are completed."""
        highest = self.committed_offset.highest
        return self.committed_offset.position != self.committed or highest != self.committed_highest

    @property
    def lag_records(self) -> int:
        return max(0, self.log_end - self.delivered_to)
