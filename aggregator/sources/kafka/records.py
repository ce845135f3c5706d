"""Records in and out, and what the source asks of a consumer and a producer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from aggregator.sources.kafka.consumer.committed_offset import Lease

DEAD_LETTER_SUFFIX = "-dlt"
"""Appended to the name of a query topic."""


class Record(Protocol):
    """One Kafka record as it was read; an aiokafka ConsumerRecord is one."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Deliveries(Protocol):
    """Kafka intake: leased records in, commits out.

    A lease completes (by `lease.committed_offset.complete`) once its outcome is acknowledged by the broker; the
    implementation commits committed offsets on its own clock, on revocation and at the end.
    """

    async def fetch(self) -> Sequence[Lease]:
        """The next records, at least one, of partitions that are not held; `lease.record` is a Record."""
        ...

    def hold(self, topics: frozenset[str]) -> None:
        """Pause exactly these topics' partitions (those over their span cap stay paused on their own)."""
        ...

    def half_span_holders(self) -> Sequence[Lease]:
        """Leases that hold back a committed offset whose span passed half of its cap: to be promoted in the queue."""
        ...


@dataclass(slots=True, eq=False)  # one per record: a frozen one costs four times as much to make
class OutgoingRecord:
    """A reply or a dead letter on its way out."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes
    headers: Sequence[tuple[str, bytes]]


Delivered = Sequence[tuple[int, Exception | None]]
"""Of some of the records sent: where each stands among them, and None, or why it was not written."""


class Producer(Protocol):
    """Kafka output: idempotent, acks=all, in batches."""

    def send(self, records: Sequence[OutgoingRecord]) -> AsyncIterator[Delivered]:
        """Send, and yield the delivery result of each record once, as they come; None when it is acknowledged.

        An exception is final for its record (topic missing, not authorised, too large); what can pass (no
        leader, broker away) is waited for.
        """
        ...
