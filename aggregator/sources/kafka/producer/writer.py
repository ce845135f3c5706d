"""The connection of the producer: aiokafka's idempotent producer, with four of its faults corrected.

After a refused batch, the broker would refuse every later batch of its partition: here each one is followed by a new
producer id. aiokafka reports a topic as missing if no broker answers: here only answers count. Its `stop` waits without
limit if the brokers are away: `close` does not. If one of its tasks fails, it waits forever: here it is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.errors import StartError
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka import aiokafka_internals as internals
from aggregator.sources.kafka.connection import client_options
from aggregator.sources.kafka.records import OutgoingRecord

_LOG = logging.getLogger(__name__)

RETRY_S = 0.2
_REQUEST_TIMEOUT_S = 15.0
_TOPIC_WAIT_S = 5.0
_REFUSAL_HOLDS_S = 5.0
_REQUEST_MAX_BYTES = 64 * 1024 * 1024


class KafkaWriter:
    """Writes batches, and knows the partitions of topics."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._closed = False
        self._restarting = asyncio.Lock()
        self._refused: dict[str, tuple[float, Exception]] = {}
        self._looked_again_s: dict[str, float] = {}

    async def start(self) -> None:
        """Connect; waits for a broker without limit. Raises StartError if waiting cannot help."""
        self._producer = await self._connect()

    async def close(self) -> None:
        """Disconnect at once: waiting writes fail with ProducerClosed."""
        self._closed = True
        if self._producer is not None:
            await internals.abandon_producer(self._producer)

    async def partitions(self, topic: str) -> set[int]:
        """The topic's partitions, at once if they are known.

        Raises UnknownTopicOrPartitionError or TopicAuthorizationFailedError once the brokers have answered so for some
        seconds; ProducerClosed.
        """
        self.raise_if_closed()
        known: set[int] | None = self._producer.client.cluster.partitions_for_topic(topic)
        if known:
            return known
        until_s, refusal = self._refused.get(topic, (0.0, None))
        if refusal is not None and _now_s() < until_s:
            raise refusal
        return await self._find(topic)

    async def look_again(self, topic: str) -> set[int]:
        """Ask whether the topic has more partitions by now, but not for every record that names one that is missing."""
        if _now_s() >= self._looked_again_s.get(topic, 0.0) + _REFUSAL_HOLDS_S:
            self._looked_again_s[topic] = _now_s()
            await self._ask_for_metadata()
        return await self.partitions(topic)

    async def write(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> Exception | None:
        """Try once to write one batch to a known partition: None if all replicas have it.

        aiokafka itself retries retriable errors that a broker answers. Raises ProducerClosed.
        """
        producer = self._producer
        batch = producer.create_batch()
        for record in records:
            headers = record.headers if type(record.headers) is list else list(record.headers)
            batch.append(timestamp=None, key=record.key, value=record.value, headers=headers)
        if batch.size() > _REQUEST_MAX_BYTES:
            return _error(kafka_errors.MessageSizeTooLargeError())
        numbered = False
        try:
            acknowledged = await producer.send_batch(batch, tp.topic, partition=tp.partition)
            numbered = True
            await acknowledged
        except kafka_errors.KafkaError as error:
            self.raise_if_closed()
            _LOG.warning("could not write a batch", extra={"topic": tp.topic, "error": repr(error)})
            if numbered:
                internals.renew_identity(producer)
            if isinstance(error, kafka_errors.TopicAuthorizationFailedError | kafka_errors.InvalidTopicError):
                self._refused[tp.topic] = (_now_s() + _REFUSAL_HOLDS_S, error)
            if isinstance(error, kafka_errors.ProducerClosed) or internals.has_ended(producer):
                await self._restart(producer)
                return _error(kafka_errors.KafkaConnectionError())
            return _error(error)
        return None

    def raise_if_closed(self) -> None:
        """Raises ProducerClosed after `close`."""
        if self._closed:
            raise kafka_errors.ProducerClosed

    async def _find(self, topic: str) -> set[int]:
        answered_s = 0.0
        while True:
            self.raise_if_closed()
            client = self._producer.client
            client.add_topic(topic)
            answered = await self._ask_for_metadata()
            client = self._producer.client
            known: set[int] | None = client.cluster.partitions_for_topic(topic)
            if known:
                return known
            refused: Exception | None = None
            if topic in client.cluster.unauthorized_topics:
                refused = kafka_errors.TopicAuthorizationFailedError(topic)
            elif answered_s >= _TOPIC_WAIT_S:
                refused = kafka_errors.UnknownTopicOrPartitionError(topic)
            if refused is not None:
                internals.forget_topic(self._producer, topic)
                self._refused[topic] = (_now_s() + _REFUSAL_HOLDS_S, refused)
                raise refused
            await asyncio.sleep(RETRY_S)
            answered_s += RETRY_S if answered else 0.0

    async def _ask_for_metadata(self) -> bool:
        """Whether a broker has answered."""
        producer = self._producer
        if not internals.has_ended(producer):
            update: asyncio.Future[bool] = producer.client.force_metadata_update()
            parts: tuple[asyncio.Future[Any], ...] = (update, *internals.producer_tasks(producer))
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if update.done():
                return await update
            update.cancel()
        await self._restart(producer)
        return False

    async def _connect(self) -> Any:
        while True:
            self.raise_if_closed()
            producer = AIOKafkaProducer(
                **client_options(self._settings),
                acks="all",
                enable_idempotence=True,
                linger_ms=0,
                max_batch_size=2**30,  # batches are cut here
                request_timeout_ms=int(_REQUEST_TIMEOUT_S * 1000),
                retry_backoff_ms=int(RETRY_S * 1000),
                metadata_max_age_ms=30_000,
            )
            try:
                await producer.start()
            except kafka_errors.ClusterAuthorizationFailedError as error:
                await internals.abandon_producer(producer)
                raise StartError("kafka: not authorised to write idempotently: grant IdempotentWrite") from error
            except kafka_errors.KafkaError as error:
                await internals.abandon_producer(producer)
                _LOG.warning("could not connect the producer", extra={"error": repr(error)})
                await asyncio.sleep(RETRY_S)
            except BaseException:
                await internals.abandon_producer(producer)
                raise
            else:
                for task in internals.producer_tasks(producer):
                    task.add_done_callback(partial(internals.fail_what_waits, producer))
                return producer

    async def _restart(self, broken: Any) -> None:
        async with self._restarting:
            if self._producer is broken:
                await internals.abandon_producer(broken)
            while self._producer is broken:
                try:
                    fresh = await self._connect()
                except StartError as error:
                    _LOG.exception("could not restart the producer", extra={"error": str(error)})
                    await asyncio.sleep(_REFUSAL_HOLDS_S)
                else:
                    self._producer = fresh
        if self._closed:
            await internals.abandon_producer(self._producer)
            self.raise_if_closed()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _error(error: Exception) -> Exception:
    """An error of aiokafka, which has no types."""
    return error
