"""Write replies, deltas and dead letters: acknowledged by all in-sync replicas, in one batch at a time per partition.

aiokafka lets further batches of a partition wait in a crowd of tasks that all wake at each change. With one batch at a
time order is kept, and a busier partition gets larger batches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.partitioner import BATCH_BYTES, size_bytes, spread
from aggregator.sources.kafka.records import Delivered, DeliveryResult, OutgoingRecord
from aggregator.sources.kafka.writer import Writer, new_client

RETRY_S = 0.2
_ODD_TRIES = 4
_TOPIC_REFUSED = (kafka_errors.TopicAuthorizationFailedError, kafka_errors.InvalidTopicError)
_RECORD_REFUSED = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.InvalidTimestampError,
    kafka_errors.UnsupportedForMessageFormatError,
    kafka_errors.PolicyViolationError,
)
_PASSES = (TimeoutError, kafka_errors.KafkaTimeoutError)
"""Retrying cures these, though aiokafka does not call them retriable."""

_Waiting = tuple[Sequence[OutgoingRecord], int, asyncio.Future[list[DeliveryResult]]]
_Pending = dict[asyncio.Future[Any], tuple[str, Sequence[int]]]


class KafkaProducer:
    """The `Producer` of replies and dead letters."""

    def __init__(self, settings: KafkaSettings, client: Callable[[KafkaSettings], Any] = new_client) -> None:
        self._writer = Writer(settings, client)
        self._queues: dict[TopicPartition, deque[_Waiting]] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._sending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

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
            for topic, positions in by_topic.items():
                known = self._writer.known_partitions(topic)
                if known:
                    self._put_all(pending, topic, positions, records, known)
                else:
                    pending[self._task(self._writer.partitions(topic))] = topic, positions
            while pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                delivered = [result for each in done for result in self._done(pending, each, records)]
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
        """Wait for unacknowledged records, at most this long, then disconnect; what waits fails with ProducerClosed."""
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
            error = await self._writer.write(tp, records)
            if error is None:
                return [None] * len(records)
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
