"""The connection of the producer. An aiokafka producer is never repaired: a fresh one takes its place.

It is not idempotent: where an acknowledgement was lost, a batch is in the log twice, with the same reply ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.aiokafka_internals import abandon_producer, space_metadata_updates
from aggregator.sources.kafka.connection import client_options, topic_partitions
from aggregator.sources.kafka.records import OutgoingRecord

_LOG = logging.getLogger(__name__)

_RETRY_S = 0.2
_REQUEST_MAX_BYTES = 64 * 1024 * 1024
_REQUEST_TIMEOUT_S = 8.0
_STUCK_S = 2.5 * _REQUEST_TIMEOUT_S
_LOOKUP_S = 5.0
_ENDED = (kafka_errors.KafkaError, kafka_errors.ProducerClosed, TimeoutError)
"""What writes raise, as exactly these types, once a task of the client has ended or hangs."""


def new_client(settings: KafkaSettings) -> Any:
    producer = AIOKafkaProducer(
        **client_options(settings),
        acks="all",
        linger_ms=0,
        max_batch_size=2**30,  # batches are cut here
        request_timeout_ms=int(_REQUEST_TIMEOUT_S * 1000),
        retry_backoff_ms=int(_RETRY_S * 1000),
        metadata_max_age_ms=30_000,
    )
    return space_metadata_updates(producer)


class Writer:
    """Writes batches, and knows the partitions of topics."""

    def __init__(self, settings: KafkaSettings, new_client: Callable[[KafkaSettings], Any]) -> None:
        self._settings = settings
        self._new_client = new_client
        self._client: Any = None
        self._connecting = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False
        self._refused: dict[str, tuple[float, Exception]] = {}
        self._topics: tuple[float, dict[str, int] | None] = (0.0, None)

    async def connect(self, instead_of: Any = None) -> None:
        """Connect a fresh client, unless that was done already; waits for a broker without limit."""
        async with self._connecting:
            while self._client is instead_of and not self._closed:
                client = self._new_client(self._settings)
                try:
                    await client.start()
                except (kafka_errors.KafkaError, OSError) as error:
                    _LOG.warning("could not connect the producer", extra={"error": repr(error)})
                    await client.stop()
                    await asyncio.sleep(_RETRY_S)
                    continue
                if instead_of is not None:
                    retiring = asyncio.create_task(self._retire(instead_of), name="end a producer")
                    self._retiring.add(retiring)
                    retiring.add_done_callback(self._retiring.discard)
                self._client = client

    async def _retire(self, client: Any) -> None:
        """Let a client end the batches that it has in flight, then disconnect it."""
        with contextlib.suppress(Exception):  # what ended one of its tasks
            async with asyncio.timeout(_STUCK_S):
                await client.stop()
        await abandon_producer(client)

    async def close(self) -> None:
        self._closed = True
        for retiring in self._retiring:
            retiring.cancel()
        if self._client is not None:
            await abandon_producer(self._client)

    async def write(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> Exception | None:
        """Try to write one batch: None if all replicas have it. aiokafka retries what a broker calls retriable."""
        client = self._client
        batch = client.create_batch()
        for record in records:
            headers = record.headers if type(record.headers) is list else list(record.headers)
            batch.append(timestamp=None, key=record.key, value=record.value, headers=headers)
        if batch.size() > _REQUEST_MAX_BYTES:
            too_large: Exception = kafka_errors.MessageSizeTooLargeError()
            return too_large
        try:
            async with asyncio.timeout(_STUCK_S):
                await (await client.send_batch(batch, tp.topic, partition=tp.partition))
        except (kafka_errors.KafkaError, TimeoutError, AssertionError) as error:  # asserts that the partition is known
            _LOG.warning("could not write a batch", extra={"topic": tp.topic, "error": repr(error)})
            if type(error) in _ENDED:
                await self.connect(instead_of=client)
                return TimeoutError()
            unwritten: Exception = error
            return unwritten
        return None

    def known_partitions(self, topic: str) -> set[int] | None:
        known: set[int] | None = self._client.client.cluster.partitions_for_topic(topic)
        return known

    async def partitions(self, topic: str) -> set[int] | Exception:
        """The topic's partitions; or why nothing can be written to it, by a broker's answer."""
        until_s, refusal = self._refused.get(topic, (0.0, None))
        while refusal is None or _now_s() >= until_s:
            client, refusal = self._client, None
            try:
                async with asyncio.timeout(_LOOKUP_S):
                    known: set[int] = await client.partitions_for(topic)
                    return known
            except kafka_errors.TopicAuthorizationFailedError as error:
                refusal = error
            except (kafka_errors.KafkaError, TimeoutError):
                refusal = await self.missing(TopicPartition(topic, 0))
                if refusal is None:
                    await self.connect(instead_of=client)
            until_s = _now_s() + _LOOKUP_S
            if refusal is not None:
                self._refused[topic] = until_s, refusal
        return refusal

    async def missing(self, tp: TopicPartition) -> Exception | None:
        """The error of a missing partition, confirmed by a broker: aiokafka also raises it if no broker answers."""
        asked_s, topics = self._topics
        if _now_s() >= asked_s + _LOOKUP_S / 2:
            topics = None
            with contextlib.suppress(kafka_errors.KafkaError, OSError, TimeoutError):
                async with asyncio.timeout(_LOOKUP_S):
                    topics = await topic_partitions(self._settings)
                    await self._client.client.force_metadata_update()  # it may have more partitions by now
            self._topics = _now_s(), topics
        if topics is None or tp.partition < topics.get(tp.topic, 0):
            return None
        missing: Exception = kafka_errors.UnknownTopicOrPartitionError(f"{tp.topic} has no partition {tp.partition}")
        return missing


def _now_s() -> float:
    return asyncio.get_running_loop().time()
