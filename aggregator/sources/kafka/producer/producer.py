"""Write replies and dead letters: idempotent, acknowledged by all replicas, in batches per partition."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TypeVar

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.producer.lines import DeliveryResult, PartitionLines
from aggregator.sources.kafka.producer.partitioner import partitions_by_key
from aggregator.sources.kafka.producer.writer import RETRY_S, KafkaWriter
from aggregator.sources.kafka.records import OnDelivered, OutgoingRecord

_ODD_TRIES = 4
_PATIENCE_S = 1.0
"""How long records that have their result wait for others sent with them."""

_TOPIC_REFUSED = (kafka_errors.TopicAuthorizationFailedError, kafka_errors.InvalidTopicError)
_RECORD_REFUSED = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.InvalidTimestampError,
    kafka_errors.UnsupportedForMessageFormatError,
    kafka_errors.PolicyViolationError,
)
_PASSES = (
    kafka_errors.OutOfOrderSequenceNumber,
    kafka_errors.UnknownProducerId,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.ProducerFenced,
    kafka_errors.KafkaTimeoutError,
)
"""What the next try, or a new producer identity, cures, though aiokafka does not call it retriable."""

T = TypeVar("T")


class _DeliveryResults:
    """Of the records of one `send`, as they come; `on_delivered` is told of them once a second, and at the end."""

    def __init__(self, count: int, on_delivered: OnDelivered | None) -> None:
        self.all: list[DeliveryResult] = [None] * count
        self._on_delivered = on_delivered
        self._fresh: list[int] = []
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._go_on)

    def put(self, positions: Sequence[int], results: Iterable[DeliveryResult]) -> None:
        """Some came."""
        for position, word in zip(positions, results, strict=True):
            self.all[position] = word
        self._fresh += positions

    def end(self) -> None:
        """No more come."""
        self._timer.cancel()
        self._tell()

    def _go_on(self) -> None:
        self._tell()
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._go_on)

    def _tell(self) -> None:
        fresh, self._fresh = self._fresh, []
        if fresh and self._on_delivered is not None:
            self._on_delivered(fresh, [self.all[position] for position in fresh])


class KafkaProducer:
    """ports.Producer over aiokafka."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._writer = KafkaWriter(settings)
        self._lines = PartitionLines(self._write)
        self._sending = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Connect; waits for a broker as long as that takes. Raises StartError for what waiting cannot cure."""
        await self._writer.start()

    async def send(
        self, records: Sequence[OutgoingRecord], on_delivered: OnDelivered | None = None
    ) -> Sequence[DeliveryResult]:
        """Send and wait for the delivery result of each: None when acknowledged.

        A partition that has no leader must not hold up what the others took: while some records are waited for,
        `on_delivered` is told of the others once a second.

        An exception is final for its record: UnknownTopicOrPartitionError, TopicAuthorizationFailedError,
        InvalidTopicError, MessageSizeTooLargeError and their like, of aiokafka.errors. What can pass is waited for.
        Raises ProducerClosed when closed before every record has its result: nothing may be concluded of them.
        """
        self._writer.raise_if_closed()
        results = _DeliveryResults(len(records), on_delivered)
        by_topic: dict[str, list[int]] = {}
        for position, record in enumerate(records):
            by_topic.setdefault(record.topic, []).append(position)
        self._sending += 1
        self._idle.clear()
        try:
            await _all(self._send_topic(topic, positions, records, results) for topic, positions in by_topic.items())
        finally:
            self._sending -= 1
            if not self._sending:
                self._idle.set()
            results.end()
        return results.all

    async def close(self, timeout_s: float) -> None:
        """Wait for what is out, at most this long, then disconnect."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        await self._writer.close()

    async def _send_topic(
        self, topic: str, positions: Sequence[int], records: Sequence[OutgoingRecord], results: _DeliveryResults
    ) -> None:
        try:
            partitions = await self._writer.partitions(topic)
            if any((records[position].partition or 0) not in partitions for position in positions):
                partitions = await self._writer.look_again(topic)
        except kafka_errors.ProducerClosed:
            raise
        except kafka_errors.KafkaError as error:
            results.put(positions, [error] * len(positions))
            return
        await _all(
            self._write_to(TopicPartition(topic, partition), mine, records, results)
            for partition, mine in _spread(positions, records, partitions).items()
        )

    async def _write_to(
        self, tp: TopicPartition, positions: Sequence[int], records: Sequence[OutgoingRecord], results: _DeliveryResults
    ) -> None:
        results.put(positions, await self._lines.send(tp, [records[position] for position in positions]))

    async def _write(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> list[DeliveryResult]:
        """Write one batch until each record has its result; a refused one does not fail the others."""
        odd_tries = 0
        while True:
            refusal = await self._refusal(tp)
            if refusal is not None:
                return [refusal] * len(records)
            error = await self._writer.write(tp, records)
            if error is None:
                return [None] * len(records)
            if isinstance(error, _TOPIC_REFUSED):
                return [error] * len(records)
            if not getattr(error, "retriable", False) and not isinstance(error, _PASSES):
                odd_tries += 1
            if isinstance(error, _RECORD_REFUSED) or odd_tries == _ODD_TRIES:
                break
            await asyncio.sleep(RETRY_S)
        if len(records) == 1:
            return [error]
        half = len(records) // 2
        return await self._write(tp, records[:half]) + await self._write(tp, records[half:])

    async def _refusal(self, tp: TopicPartition) -> DeliveryResult:
        """Why nothing can be written to this partition, as far as the topic says; None if nothing speaks against it."""
        try:
            if tp.partition in await self._writer.partitions(tp.topic):
                return None
        except kafka_errors.ProducerClosed:
            raise
        except kafka_errors.KafkaError as error:
            refusal: Exception = error
            return refusal
        unknown: Exception = kafka_errors.UnknownTopicOrPartitionError(f"{tp.topic} has no partition {tp.partition}")
        return unknown


async def _all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Gather, but without tasks where there is one thing to wait for, which is the usual case."""
    several = list(awaitables)
    if len(several) == 1:
        return [await several[0]]
    return await asyncio.gather(*several)


def _spread(
    positions: Sequence[int], records: Sequence[OutgoingRecord], partitions: set[int]
) -> Mapping[int, Sequence[int]]:
    """Which records go to which partition: the one named, else the key's, else one at random for all that are left."""
    spread: dict[int, list[int]] = {}
    keyed: list[int] = []
    keys: list[bytes] = []
    at_random = random.choice(tuple(partitions))  # noqa: S311 - any will do
    for position in positions:
        record = records[position]
        if record.partition is not None:
            spread.setdefault(record.partition, []).append(position)
        elif record.key is not None:
            keyed.append(position)
            keys.append(record.key)
        else:
            spread.setdefault(at_random, []).append(position)
    for position, partition in zip(keyed, partitions_by_key(keys, len(partitions)), strict=True):
        spread.setdefault(partition, []).append(position)
    return spread
