"""Kafka records and completed requests to test with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aggregator.sources.kafka.offsets import CommittedOffset, InFlightRecord


@dataclass(slots=True)
class FakeRecord:
    """A record as a consumer returns it; a ports.Record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


def record_at(offset: int) -> FakeRecord:
    """A record of which only the offset matters."""
    return FakeRecord("requests", 0, offset, 0, None, b"")


def in_flight_of(
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]] = (),
    *,
    topic: str = "embed.requests.v1",
    partition: int = 3,
    offset: int = 42,
    key: bytes | None = b"key",
) -> InFlightRecord:
    record = FakeRecord(topic, partition, offset, 1_700_000_000_000, key, value, tuple(headers))
    return CommittedOffset(topic, partition, offset).deliver(record)
