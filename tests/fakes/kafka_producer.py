"""The producer's side of the in-memory Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka import errors as kafka_errors
from aiokafka.partitioner import murmur2

from aggregator.ports import OutgoingRecord
from tests.fakes.kafka import FakeKafka


class FakeProducer:
    """ports.Producer over FakeKafka."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self._closed = False

    async def start(self) -> None:
        """Nothing to do."""

    async def send(self, records: Sequence[OutgoingRecord]) -> Sequence[Exception | None]:
        """Append each record, or say why not; waits while the broker is down."""
        while self._kafka.down and not self._closed:  # noqa: ASYNC110 - a switch calls nobody
            await asyncio.sleep(0.001)
        if self._closed:
            raise kafka_errors.ProducerClosed
        return [self._append(record) for record in records]

    async def close(self, timeout_s: float) -> None:
        """Send no more."""
        del timeout_s
        self._closed = True

    def _append(self, record: OutgoingRecord) -> Exception | None:
        partitions = self._kafka.partitions(record.topic)
        if record.topic in self._kafka.refusals:
            return self._kafka.refusals[record.topic]
        if not partitions or record.partition not in {None, *partitions}:
            missing: Exception = kafka_errors.UnknownTopicOrPartitionError(record.topic)
            return missing
        if len(record.value) > self._kafka.max_message_bytes:
            too_large: Exception = kafka_errors.MessageSizeTooLargeError()
            return too_large
        by_key = (murmur2(record.key or b"") & 0x7FFFFFFF) % len(partitions)
        self._kafka.append((record.topic, record.partition if record.partition is not None else by_key), record)
        return None
