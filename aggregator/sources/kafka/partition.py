"""The state of one assigned partition: how far it was read, handed out and committed, and why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from aiokafka import TopicPartition

from aggregator.sources.kafka.committed_offset import CommittedOffset, InFlightRecord
from aggregator.sources.kafka.records import RawRecord, Record

_RESUME_SHARE = 0.75


class Fault(Enum):
    """Why a fetch cannot continue at the position of a partition."""

    OUT_OF_RANGE = auto()
    UNDECODABLE = auto()
    """aiokafka cannot decode a record there; or in another partition, as the error does not always name it."""


class Partition:
    """One partition whose start position is known, during one assignment of it.

    `fetched` are records that wait to be handed out, `read_to` is the next offset to fetch, `delivered_to` the next to
    hand out, `committed` what the group is known to have (None: nothing yet). One with a `fault` is
    not fetched until that is handled.
    """

    def __init__(self, tp: TopicPartition, offset: int, committed: int | None) -> None:
        self.tp = tp
        self.committed_offset = CommittedOffset(tp.topic, tp.partition, offset)
        self.committed = committed
        self.fetched: Sequence[Record] = ()
        self.read_to = self.delivered_to = offset
        self.log_end = 0
        self.over_span = False
        self.fault: Fault | None = None
        self.blocked_until_s = 0.0

    def deliver(self) -> list[InFlightRecord]:
        """Hand out what was fetched; offsets up to `read_to` that held no record count as completed after it."""
        deliver = self.committed_offset.deliver
        in_flight_records = [deliver(record) for record in self.fetched]
        if in_flight_records and isinstance(self.fetched[0], RawRecord):
            for in_flight, record in zip(in_flight_records, self.fetched, strict=True):
                if isinstance(record, RawRecord):
                    in_flight.unreadable = record.unreadable
        self.fetched = ()
        self.skip_to(self.read_to)
        return in_flight_records

    def skip_to(self, offset: int) -> None:
        """Skip offsets that will never hold a record."""
        self.committed_offset.skip_to(offset)
        self.read_to = max(self.read_to, offset)
        self.delivered_to = max(self.delivered_to, offset)

    def keep(self, records: Sequence[Record], offset: int) -> None:
        """Keep what was fetched up to `offset` until it is handed out; without records, skip to there."""
        if records:
            self.fetched, self.read_to = records, max(records[-1].offset + 1, offset)
        else:
            self.skip_to(offset)

    def watch_span(self, max_commit_span: int) -> None:
        """Pause above the cap; resume only once well below it. Unfinished records count too."""
        limit = max_commit_span * _RESUME_SHARE if self.over_span else max_commit_span
        self.over_span = max(self.committed_offset.span, self.committed_offset.unfinished) > limit

    @property
    def moved(self) -> bool:
        return self.committed_offset.position != self.committed

    @property
    def lag_records(self) -> int:
        return max(0, self.log_end - self.delivered_to)
