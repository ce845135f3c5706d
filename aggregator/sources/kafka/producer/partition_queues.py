"""One write at a time to each partition; records that come meanwhile are written together after it.

aiokafka takes one pending batch per partition; further ones wait for it, and all of them wake at each change. With one
write at a time there is never a second one. Order is kept, and a busier partition gets larger batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from aiokafka import TopicPartition

from aggregator.sources.kafka.records import OutgoingRecord

BATCH_BYTES = 256 * 1024
_RECORD_OVERHEAD_BYTES = 100

DeliveryResult = Exception | None
"""Of one record: None if the broker acknowledged it, else why it never will."""

Write = Callable[[TopicPartition, Sequence[OutgoingRecord]], Awaitable[list[DeliveryResult]]]

_Waiting = tuple[Sequence[OutgoingRecord], int, asyncio.Future[list[DeliveryResult]]]


class PartitionQueues:
    """A queue for each partition. `write` writes records to one partition until each has its result."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._queues: dict[TopicPartition, deque[_Waiting]] = {}
        self._writing: dict[TopicPartition, asyncio.Task[None]] = {}

    def put(self, tp: TopicPartition, records: Sequence[OutgoingRecord]) -> asyncio.Future[list[DeliveryResult]]:
        """Queue records; the future has their delivery results, in their order, or what `write` raised."""
        results: asyncio.Future[list[DeliveryResult]] = asyncio.get_running_loop().create_future()
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = deque()
            self._writing[tp] = asyncio.create_task(self._write_all(tp, queue), name="write to a partition")
        queue.append((records, size_bytes(records), results))
        return results

    async def _write_all(self, tp: TopicPartition, queue: deque[_Waiting]) -> None:
        try:
            while queue:
                waiting = [queue.popleft()]
                total_bytes = waiting[0][1]
                while queue and total_bytes + queue[0][1] <= BATCH_BYTES:
                    waiting.append(queue.popleft())
                    total_bytes += waiting[-1][1]
                await self._write_together(tp, waiting)
        finally:
            del self._queues[tp], self._writing[tp]

    async def _write_together(self, tp: TopicPartition, waiting: Sequence[_Waiting]) -> None:
        try:
            found = await self._write(tp, [record for records, _, _ in waiting for record in records])
        except Exception as error:  # noqa: BLE001 - it is raised to whoever waits
            for _, _, results in waiting:
                if not results.done():
                    results.set_exception(error)
            return
        end = 0
        for records, _, results in waiting:
            start, end = end, end + len(records)
            if not results.done():  # whoever put them may have been cancelled
                results.set_result(found[start:end])


def size_bytes(records: Sequence[OutgoingRecord]) -> int:
    """About as much as these take in a batch."""
    keys_and_values = [len(record.value) + len(record.key or b"") for record in records]
    return sum(keys_and_values) + _RECORD_OVERHEAD_BYTES * len(records)
