"""Fuzz record batches that are read by hand."""

from __future__ import annotations

from aiokafka import TopicPartition
from aiokafka.record.util import calc_crc32c

from aggregator.wings.undecodable.batches import decode_batch
from tests.fuzz.kafka_targets import take
from tests.fuzz.target import Target


def check_batch(data: bytes) -> None:
    """A record batch as a broker, or its disk, may hand it out."""
    for each in (data, _with_right_checksum(data)):
        _check_batch(each)


def _with_right_checksum(data: bytes) -> bytes:
    """As a producer that writes nonsense would send it."""
    end = 12 + int.from_bytes(data[8:12], "big", signed=True)
    checksum: int = calc_crc32c(data[21:end])
    return data[:17] + checksum.to_bytes(4, "big") + data[21:]


def _check_batch(data: bytes) -> None:
    found = decode_batch(data, TopicPartition("topic", 2), 5, aborted=[(7, 5)], log_end=1000, max_records=500)
    if found is None:
        return
    assert found.after > 5, "Reading would go back, or stand still."
    assert all(5 <= record.offset < found.after for record in found.records if not record.unreadable), (
        "A record was delivered again, or will be."
    )
    for record in found.records:
        take(record.value, record.headers)


TARGETS = (Target("kafka_batch", check_batch),)
