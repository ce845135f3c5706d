"""The connection under the producer: aiokafka's idempotent producer, with four of its habits mended.

It counts a batch's sequence numbers when it first sends it and never takes them back, so after a final failure the
broker would refuse every later batch of that partition: here each failed batch is followed by a new producer identity.
It takes a topic for missing when no broker answers: here only answers count. It waits for ever to stop when the
brokers are away: `close` does not. And once one of its tasks has ended it waits for ever: here it is made anew.
Checked against aiokafka 0.14; it has no public way to any of the four.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.producer.transaction_manager import TransactionManager

from aggregator.errors import StartError
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.connection import client_options, close_client
from aggregator.sources.kafka.records import OutgoingRecord

_LOG = logging.getLogger(__name__)

RETRY_S = 0.2
_REQUEST_TIMEOUT_S = 15.0
_TOPIC_WAIT_S = 5.0
_REFUSAL_HOLDS_S = 5.0
_REQUEST_MAX_BYTES = 64 * 1024 * 1024
_STOP_S = 2.0


class KafkaWriter:
    """Writes one batch of one partition at a time, and knows which partitions there are."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._closed = False
        self._restarting = asyncio.Lock()
        self._refused: dict[str, tuple[float, Exception]] = {}
        self._looked_again_s: dict[str, float] = {}

    async def start(self) -> None:
        """Connect; waits for a broker as long as that takes. Raises StartError for what waiting cannot cure."""
        self._producer = await self._connect()

    async def close(self) -> None:
        """Disconnect at once: whoever still waits gets ProducerClosed."""
        self._closed = True
        if self._producer is not None:
            await _abandon(self._producer)

    async def partitions(self, topic: str) -> set[int]:
        """The topic's partitions, at once if they are known.

        Raises UnknownTopicOrPartitionError or TopicAuthorizationFailedError once the brokers have said for a while
        that it is not there, or not for this client; ProducerClosed.
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
        """Ask whether the topic has got more partitions, but not at every record that names one too high."""
        if _now_s() >= self._looked_again_s.get(topic, 0.0) + _REFUSAL_HOLDS_S:
            self._looked_again_s[topic] = _now_s()
            await self._ask_for_metadata()
        return await self.partitions(topic)

    async def write(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> Exception | None:
        """Try once to write one batch to a partition that is known: None when all replicas have it.

        Retriable errors that have a broker's answer are retried by aiokafka itself. Raises ProducerClosed.
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
                _renew_identity(producer)
            if isinstance(error, kafka_errors.TopicAuthorizationFailedError | kafka_errors.InvalidTopicError):
                self._refused[tp.topic] = (_now_s() + _REFUSAL_HOLDS_S, error)
            if isinstance(error, kafka_errors.ProducerClosed) or _has_ended(producer):
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
                client._topics.discard(topic)  # noqa: SLF001 - or every refresh would ask for it again
                self._refused[topic] = (_now_s() + _REFUSAL_HOLDS_S, refused)
                raise refused
            await asyncio.sleep(RETRY_S)
            answered_s += RETRY_S if answered else 0.0

    async def _ask_for_metadata(self) -> bool:
        """Whether a broker has told it anew."""
        producer = self._producer
        if not _has_ended(producer):
            update: asyncio.Future[bool] = producer.client.force_metadata_update()
            parts: tuple[asyncio.Future[Any], ...] = (update, *_tasks(producer))
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
                await _abandon(producer)
                raise StartError("kafka: not authorised to write idempotently: grant IdempotentWrite") from error
            except kafka_errors.KafkaError as error:
                await _abandon(producer)
                _LOG.warning("could not connect the producer", extra={"error": repr(error)})
                await asyncio.sleep(RETRY_S)
            except BaseException:
                await _abandon(producer)
                raise
            else:
                for task in _tasks(producer):
                    task.add_done_callback(partial(_fail_what_waits, producer))
                return producer

    async def _restart(self, broken: Any) -> None:
        async with self._restarting:
            if self._producer is broken:
                await _abandon(broken)
            while self._producer is broken:
                try:
                    fresh = await self._connect()
                except StartError as error:
                    _LOG.exception("could not restart the producer", extra={"error": str(error)})
                    await asyncio.sleep(_REFUSAL_HOLDS_S)
                else:
                    self._producer = fresh
        if self._closed:
            await _abandon(self._producer)
            self.raise_if_closed()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _error(error: Exception) -> Exception:
    """An error of aiokafka, which has no types."""
    return error


def _tasks(producer: Any) -> tuple[asyncio.Task[None], ...]:
    """What a producer lives by; each ends with it, or for an error. A client that is closed has one task less."""
    tasks = (producer._sender.sender_task, producer.client._sync_task)  # noqa: SLF001 - see the top of this file
    return tuple(task for task in tasks if task is not None)


def _has_ended(producer: Any) -> bool:
    """Whether it writes nothing any more: another writer may be making it anew already."""
    return producer.client._sync_task is None or any(task.done() for task in _tasks(producer))  # noqa: SLF001


def _fail_what_waits(producer: Any, ended: asyncio.Task[None]) -> None:
    """Give everything that waits for a word one, and everything that comes after it too."""
    producer._message_accumulator.fail_all(  # noqa: SLF001 - see the top of this file
        kafka_errors.KafkaConnectionError(f"{ended.get_coro()} has ended")
    )


def _renew_identity(producer: Any) -> None:
    """Make aiokafka ask for a new producer id, with new sequence numbers, before its next new batch."""
    fresh = TransactionManager(None, 2**31 - 1)
    for part in (producer, producer._sender, producer._message_accumulator):  # noqa: SLF001 - see the top of this file
        part._txn_manager = fresh  # noqa: SLF001


async def _abandon(producer: Any) -> None:
    """Stop without waiting for any broker: what has no word yet fails with ProducerClosed."""
    accumulator = producer._message_accumulator  # noqa: SLF001 - `stop` would wait for what is in it
    accumulator.fail_all(kafka_errors.ProducerClosed())
    for batch in chain(accumulator._pending_batches, *accumulator._batches.values()):  # noqa: SLF001
        if batch._drain_waiter.done():  # noqa: SLF001 - nobody asks for it, and asyncio would complain
            batch._drain_waiter.exception()  # noqa: SLF001
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_STOP_S):
            await close_client(producer.client)
            await producer.stop()
