"""Write replies, deltas and dead letters: acknowledged by all in-sync replicas, in one batch at a time per partition.

aiokafka lets further batches of a partition wait in a crowd of tasks that all wake at each change. With one batch at a
time order is kept, and a busier partition gets larger batches.
An aiokafka producer is never repaired: a fresh one takes its place. It is not idempotent: where an acknowledgement was
lost, a batch is in the log twice, with the same reply ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from math import inf
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.observability.tracing import Tracing
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.aiokafka_internals import (
    InvalidRecordError,
    abandon_producer,
    forget_topic,
    space_metadata_updates,
)
from aggregator.sources.kafka.connection import at_work, client_options, topic_partitions
from aggregator.sources.kafka.outgoing import BATCH_BYTES, Delivered, DeliveryResult, OutgoingRecord, size_bytes, spread

_LOG = logging.getLogger(__name__)

RETRY_S = 0.2  # an election of a leader takes about a second
_ODD_TRIES = 4  # for errors that may pass, and may not
_TOPIC_REFUSED = (kafka_errors.TopicAuthorizationFailedError, kafka_errors.InvalidTopicError)
_RECORD_REFUSED = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    InvalidRecordError,
    kafka_errors.UnsupportedForMessageFormatError,
    kafka_errors.PolicyViolationError,
)
_KEYLESS = (InvalidRecordError, kafka_errors.CorruptRecordException)
"""What brokers, and old ones, say of a record without a key for a compacted topic."""
_PASSES = (TimeoutError, kafka_errors.KafkaTimeoutError, kafka_errors.UnsupportedVersionError)
"""Retrying cures these, though aiokafka does not call them retriable."""

_Waiting = tuple[Sequence[OutgoingRecord], int, asyncio.Future[list[DeliveryResult]]]
_Pending = dict[asyncio.Future[Any], tuple[str, Sequence[int]]]
_REQUEST_MAX_BYTES = 64 * 1024 * 1024  # the broker's limit decides
_REQUEST_TIMEOUT_S = 8.0  # a broker that hangs is given up after it, and the batch is sent again
_STUCK_S = 2.5 * _REQUEST_TIMEOUT_S  # longer than aiokafka's own time-outs: one of its tasks hangs
_CLOCK_AGAIN_S = 30.0  # a clock that brokers refused is tried again after it
_CLOCK_TROUBLE = "Kafka's brokers refuse the time of what is written: is this machine's clock right, and theirs?"
_LOOKUP_S = 5.0  # and as long a refused topic is not asked for again
_MOST_REFUSED = 1024  # topics that senders named, of which that is remembered
_ENDED = (kafka_errors.KafkaError, kafka_errors.ProducerClosed, TimeoutError)
"""The errors that writes raise, as exactly these types, once a task of the client has ended or hangs."""


def new_client(settings: KafkaSettings) -> Any:
    producer = AIOKafkaProducer(
        **client_options(settings),
        acks="all",
        linger_ms=0,
        max_batch_size=2**30,  # batches are cut here
        request_timeout_ms=int(_REQUEST_TIMEOUT_S * 1000),
        retry_backoff_ms=int(RETRY_S * 1000),
        metadata_max_age_ms=30_000,
    )
    return space_metadata_updates(producer)


class KafkaProducer:
    """Writes replies, deltas and dead letters."""

    def __init__(
        self,
        settings: KafkaSettings,
        client: Callable[[KafkaSettings], Any] = new_client,
        tracing: Tracing | None = None,
        on_untimely: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_untimely` is called with the topic of each batch that a broker refuses for the time of its records."""
        self._writer = Writer(settings, client)
        self._tracing = tracing or Tracing()
        self._queues: dict[TopicPartition, deque[_Waiting]] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._sending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._on_untimely = on_untimely
        self._own_clock_from_s = -inf
        self._untimely: set[TopicPartition] = set()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written to some partition, though no record is at fault; None if it can."""
        return _CLOCK_TROUBLE if self._untimely else None

    async def start(self) -> None:
        """Connect; waits for a broker without limit. Raises StartError for security files that cannot be read."""
        await self._writer.connect()

    async def send(self, records: Sequence[OutgoingRecord]) -> AsyncIterator[Delivered]:
        """Send, and yield the delivery results as they come: a partition without a leader delays no other.

        An exception is final for its record: UnknownTopicOrPartitionError, TopicAuthorizationFailedError,
        InvalidTopicError, MessageSizeTooLargeError and similar ones of aiokafka.errors. Other errors are retried.
        Raises ProducerClosed if closed before every record has its result: the outcome of the others is unknown.
        """
        if self._closed:
            raise kafka_errors.ProducerClosed
        by_topic: dict[str, list[int]] = {}
        for position, record in enumerate(records):
            by_topic.setdefault(record.topic, []).append(position)
        pending: _Pending = {}
        self._sending += 1
        self._idle.clear()
        try:
            with self._tracing.send({topic: len(positions) for topic, positions in by_topic.items()}) as refused:
                for topic, positions in by_topic.items():
                    known = self._writer.known_partitions(topic)
                    if known:
                        self._put_all(pending, topic, positions, records, known)
                    else:
                        pending[self._task(self._writer.partitions(topic))] = topic, positions
                while pending:
                    done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    delivered = [result for each in done for result in self._done(pending, each, records)]
                    _mark_refused(refused, delivered, records)
                    if delivered:
                        yield delivered
        finally:
            for each in pending:
                each.cancel()
            self._sending -= 1
            if not self._sending:
                self._idle.set()

    def _done(self, pending: _Pending, future: asyncio.Future[Any], records: Sequence[OutgoingRecord]) -> Delivered:
        """The delivery results of a batch; none if only the partitions of its topic are known now."""
        topic, positions = pending.pop(future)
        if future.cancelled():
            raise kafka_errors.ProducerClosed
        found = future.result()
        if isinstance(found, list):
            return list(zip(positions, found, strict=True))
        if isinstance(found, Exception):
            return [(position, found) for position in positions]
        self._put_all(pending, topic, positions, records, found)
        return ()

    async def close(self, timeout_s: float) -> None:
        """Wait for unacknowledged records, at most this long, then disconnect; the rest fail with ProducerClosed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        self._closed = True
        for each in [*self._tasks, *(results for queue in self._queues.values() for _, _, results in queue)]:
            each.cancel()
        await self._writer.close()

    def _task(self, work: Any) -> asyncio.Future[Any]:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _put_all(
        self,
        pending: _Pending,
        topic: str,
        positions: Sequence[int],
        records: Sequence[OutgoingRecord],
        known: set[int],
    ) -> None:
        for partition, share in spread(positions, records, known):
            pending[self._put(TopicPartition(topic, partition), [records[at] for at in share])] = topic, share

    def _put(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> asyncio.Future[list[DeliveryResult]]:
        results: asyncio.Future[list[DeliveryResult]] = asyncio.get_running_loop().create_future()
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = deque()
            self._task(self._write_all(tp, queue))
        queue.append((records, size_bytes(records), results))
        return results

    async def _write_all(self, tp: TopicPartition, queue: deque[_Waiting]) -> None:
        batch: list[_Waiting] = []
        try:
            while queue:
                batch = [queue.popleft()]
                total_bytes = batch[0][1]
                while queue and total_bytes + queue[0][1] <= BATCH_BYTES:
                    batch.append(queue.popleft())
                    total_bytes += batch[-1][1]
                found = iter(await self._write(tp, [record for records, _, _ in batch for record in records]))
                for records, _, results in batch:
                    shares = [next(found) for _ in records]
                    if not results.done():  # its sender may have been cancelled
                        results.set_result(shares)
        except Exception as error:  # noqa: BLE001 - a bug: it is raised to the senders
            for _, _, results in [*batch, *queue]:
                if not results.done():
                    results.set_exception(error)
        finally:
            for _, _, results in [*batch, *queue]:
                results.cancel()  # does nothing to one that has its result
            del self._queues[tp]

    async def _write(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> list[DeliveryResult]:
        """Write one batch until each record has its result; a refused one does not fail the others."""
        odd_tries = 0
        while True:
            own_clock = _now_s() >= self._own_clock_from_s
            error = await self._writer.write(tp, records, own_clock=own_clock)
            if error is None:
                self._untimely.discard(tp)
                return [None] * len(records)
            if isinstance(error, kafka_errors.InvalidTimestampError):
                await self._wait_for_clocks(tp, own_clock=own_clock)
                continue
            if isinstance(error, _KEYLESS) and _made_keys(records):
                continue
            final = error if isinstance(error, _TOPIC_REFUSED) else await self._writer.missing(tp)
            if final is not None:
                return [final] * len(records)
            odd_tries += not (getattr(error, "retriable", False) or isinstance(error, _PASSES))
            if isinstance(error, _RECORD_REFUSED) or odd_tries == _ODD_TRIES:
                break
            await asyncio.sleep(RETRY_S)
        if len(records) == 1:
            return [error]
        half = len(records) // 2
        return await self._write(tp, records[:half]) + await self._write(tp, records[half:])

    async def _wait_for_clocks(self, tp: TopicPartition, *, own_clock: bool) -> None:
        """A broker refused the time of records, which is no record's fault: another time is tried next.

        By this machine's clock and by the requests' own times in turn; as long as both are refused, what is to be
        written waits.
        """
        self._on_untimely(tp.topic)
        if own_clock:
            _LOG.error("a broker refuses the time of this machine's clock", extra={"topic": tp.topic})
            self._own_clock_from_s = _now_s() + _CLOCK_AGAIN_S
            return
        self._untimely.add(tp)
        self._own_clock_from_s = -inf
        await asyncio.sleep(RETRY_S)


def _made_keys(records: Sequence[OutgoingRecord]) -> bool:
    """Give records without a key one; whether any got one."""
    keyless = [record for record in records if record.key is None and record.identity]
    for record in keyless:
        record.key = record.identity
    return bool(keyless)


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
        """Connect a fresh client, unless that was done already; waits for a broker. The first one raises StartError."""
        async with self._connecting:
            while self._client is instead_of and not self._closed:
                client: Any = None
                try:
                    with at_work(started=instead_of is not None):
                        client = self._new_client(self._settings)
                    await client.start()
                except (kafka_errors.KafkaError, OSError) as error:
                    _LOG.warning("could not connect the producer", extra={"error": repr(error)})
                    if client is not None:
                        await client.stop()
                    await asyncio.sleep(RETRY_S)
                    continue
                if instead_of is not None:
                    retiring = asyncio.create_task(self._retire(instead_of), name="end a producer")
                    self._retiring.add(retiring)
                    retiring.add_done_callback(self._retiring.discard)
                self._client = client

    async def _retire(self, client: Any) -> None:
        """Let a client end the batches that it has in flight, then disconnect it."""
        with contextlib.suppress(Exception):  # the error of one of its tasks
            async with asyncio.timeout(_STUCK_S):
                await client.stop()
        await abandon_producer(client)

    async def close(self) -> None:
        self._closed = True
        for retiring in self._retiring:
            retiring.cancel()
        if self._client is not None:
            await abandon_producer(self._client)

    async def write(
        self, tp: TopicPartition, records: Sequence[OutgoingRecord], *, own_clock: bool = True
    ) -> Exception | None:
        """Try to write one batch: None if all replicas have it. aiokafka retries retriable errors of a broker.

        `own_clock`: the records carry the present time; else that of the records which they follow.
        """
        client = self._client
        batch = client.create_batch()
        for record in records:
            headers = record.headers if type(record.headers) is list else list(record.headers)
            at_ms = None if own_clock or record.timestamp_ms < 0 else record.timestamp_ms
            batch.append(timestamp=at_ms, key=record.key, value=record.value, headers=headers)
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
                    self._refused.pop(topic, None)
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
                self._forget_oldest()
        return refusal

    def _forget_oldest(self) -> None:
        if len(self._refused) > _MOST_REFUSED:
            oldest = next(iter(self._refused))
            del self._refused[oldest]
            if not self.known_partitions(oldest):
                forget_topic(self._client, oldest)

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


def _mark_refused(
    refused: Callable[[str, Exception], None], delivered: Delivered, records: Sequence[OutgoingRecord]
) -> None:
    for position, error in delivered:
        if error is not None:
            refused(records[position].topic, error)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
