"""The producer's side of the in-memory Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka import errors as kafka_errors
from aiokafka.partitioner import murmur2

from aggregator.sources.kafka.records import OnDelivered, OutgoingRecord
from tests.fakes.kafka import FakeKafka


class FakeProducer:
    """ports.Producer over FakeKafka."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self._closed = False

    async def start(self) -> None:
        """Nothing to do."""

    async def send(
        self, records: Sequence[OutgoingRecord], on_delivered: OnDelivered | None = None
    ) -> Sequence[Exception | None]:
        """Append each record, or say why not; waits while the broker is down, and for partitions without a leader."""
        while self._kafka.down and not self._closed:  # noqa: ASYNC110 - a switch calls nobody
            await asyncio.sleep(0.001)
        if self._closed:
            raise kafka_errors.ProducerClosed
        words: list[Exception | None] = [None] * len(records)
        left: Sequence[int] = range(len(records))
        while True:
            now = [position for position in left if self._place(records[position]) not in self._kafka.leaderless]
            for position in now:
                words[position] = self._append(records[position])
            left = [position for position in left if position not in now]
            if now and on_delivered is not None:
                on_delivered(now, [words[position] for position in now])
            if not left:
                return words
            await asyncio.sleep(0.1)

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
        self._kafka.append(self._place(record), record)
        return None

    def _place(self, record: OutgoingRecord) -> tuple[str, int]:
        if record.partition is not None:
            return record.topic, record.partition
        count = len(self._kafka.partitions(record.topic)) or 1
        return record.topic, (murmur2(record.key or b"") & 0x7FFFFFFF) % count
