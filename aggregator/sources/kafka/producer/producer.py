"""Write replies and dead letters: idempotent, acknowledged by all replicas, in batches per partition."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.producer.partition_queues import (
    BATCH_BYTES,
    DeliveryResult,
    PartitionQueues,
    size_bytes,
)
from aggregator.sources.kafka.producer.partitioner import partitions_by_key
from aggregator.sources.kafka.producer.writer import RETRY_S, KafkaWriter
from aggregator.sources.kafka.records import Delivered, OutgoingRecord

_ODD_TRIES = 4

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
"""A retry or a new producer id cures these, though aiokafka does not call them retriable."""


class KafkaProducer:
    """The `Producer` of replies and dead letters."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._writer = KafkaWriter(settings)
        self._queues = PartitionQueues(self._write)
        self._sending = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Connect; waits for a broker without limit. Raises StartError if waiting cannot help."""
        await self._writer.start()

    async def send(self, records: Sequence[OutgoingRecord]) -> AsyncIterator[Delivered]:
        """Send, and yield the delivery results as they come: a partition without a leader delays no other.

        An exception is final for its record: UnknownTopicOrPartitionError, TopicAuthorizationFailedError,
        InvalidTopicError, MessageSizeTooLargeError and similar ones of aiokafka.errors. Other errors are retried.
        Raises ProducerClosed if closed before every record has its result: the outcome of the others is unknown.
        """
        self._writer.raise_if_closed()
        by_topic: dict[str, list[int]] = {}
        for position, record in enumerate(records):
            by_topic.setdefault(record.topic, []).append(position)
        lookups = {
            asyncio.ensure_future(self._partitions(topic, [records[position] for position in positions])): topic
            for topic, positions in by_topic.items()
        }
        writes: dict[asyncio.Future[list[DeliveryResult]], Sequence[int]] = {}
        self._sending += 1
        self._idle.clear()
        try:
            while lookups or writes:
                waiting: list[asyncio.Future[Any]] = [*lookups, *writes]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                delivered: list[tuple[int, DeliveryResult]] = []
                for write in [each for each in writes if each.done()]:
                    delivered += zip(writes.pop(write), write.result(), strict=True)
                for lookup in [each for each in lookups if each.done()]:
                    topic = lookups.pop(lookup)
                    found = lookup.result()
                    if isinstance(found, Exception):
                        delivered += [(position, found) for position in by_topic[topic]]
                    else:
                        writes |= self._put(topic, by_topic[topic], records, found)
                if delivered:
                    yield delivered
        finally:
            pending: list[asyncio.Future[Any]] = [*lookups, *writes]
            for each in pending:
                if not each.cancel():
                    each.exception()  # nobody else asks for it, and asyncio would complain
            self._sending -= 1
            if not self._sending:
                self._idle.set()

    def _put(
        self, topic: str, positions: Sequence[int], records: Sequence[OutgoingRecord], partitions: set[int]
    ) -> dict[asyncio.Future[list[DeliveryResult]], Sequence[int]]:
        """Queue each share for its partition; returns the positions of its records."""
        return {
            self._queues.put(TopicPartition(topic, partition), [records[position] for position in share]): share
            for partition, share in spread(positions, records, partitions)
        }

    async def close(self, timeout_s: float) -> None:
        """Wait for unacknowledged records, at most this long, then disconnect."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        await self._writer.close()

    async def _partitions(self, topic: str, records: Sequence[OutgoingRecord]) -> set[int] | Exception:
        """The topic's partitions, or why none of these records can be written. Raises ProducerClosed."""
        try:
            partitions = await self._writer.partitions(topic)
            if any((record.partition or 0) not in partitions for record in records):
                partitions = await self._writer.look_again(topic)
        except kafka_errors.ProducerClosed:
            raise
        except kafka_errors.KafkaError as error:
            refusal: Exception = error
            return refusal
        return partitions

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
        """Why nothing can be written to this partition, by the topic's metadata; None if it can."""
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


def spread(
    positions: Sequence[int], records: Sequence[OutgoingRecord], partitions: set[int]
) -> Iterator[tuple[int, Sequence[int]]]:
    """Which records go to which partition: the one they name, else that of their key, else a random one for all others.

    A partition has several shares if its records do not fit one batch.
    """
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
    for partition, share in spread.items():
        if size_bytes([records[position] for position in share]) <= BATCH_BYTES:
            yield partition, share
            continue
        start = total_bytes = 0
        for index, position in enumerate(share):
            record_bytes = size_bytes([records[position]])
            if index > start and total_bytes + record_bytes > BATCH_BYTES:
                yield partition, share[start:index]
                start, total_bytes = index, 0
            total_bytes += record_bytes
        yield partition, share[start:]
