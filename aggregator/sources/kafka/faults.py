"""Find where a partition is read on when its position is out of range, or aiokafka cannot decode a record there.

aiokafka raises for a header name that is not UTF-8, a wrong checksum and an unknown compression, and drops all
records of the fetch with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition

from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.offsets import Fault, OnFenced, Partition, RawRecord

_LOG = logging.getLogger(__name__)
_BLOCKED_S = 10.0  # people mend a log; or the end of the batch is known when another follows


@dataclass(frozen=True, slots=True)
class Decoded:
    """Records from an offset on, including undecodable ones, and the offset after them.

    `lost` offsets are of a corrupt batch: one record with its bytes stands for them.
    """

    records: Sequence[RawRecord]
    after: int
    lost: int = 0


ReadByHand = Callable[[Any, TopicPartition, int, int], Awaitable[Decoded | None]]
"""Reads records that aiokafka cannot decode: of a client, from an offset on, at most a number of them.

None: the partition waits."""


async def wait_for_people(client: Any, tp: TopicPartition, offset: int, max_records: int) -> None:
    """Read nothing by hand: the partition waits, and nothing is lost. `wings/undecodable` reads on."""
    del client, tp, offset, max_records


class FaultHandler:
    """Handles the faults of one member's partitions. Calls do not overlap."""

    def __init__(
        self, settings: KafkaSettings, client: Any, metrics: Metrics, on_fenced: OnFenced, read_by_hand: ReadByHand
    ) -> None:
        self._max_records = settings.client.max_poll_records
        self._client = client
        self._metrics = metrics
        self._on_fenced = on_fenced
        self._read_by_hand = read_by_hand

    async def handle(self, partition: Partition, is_assigned: Callable[[], bool]) -> Partition | None:
        """The partition to read on with, at a position that can be read; None to try again later, or if it was revoked.

        Raises KafkaError or TimeoutError.
        """
        if partition.fault is Fault.OUT_OF_RANGE:
            start = (await self._client.beginning_offsets([partition.tp]))[partition.tp]
            return self._return_to_log(partition, start) if is_assigned() else None
        decoded = await self._read_by_hand(self._client, partition.tp, partition.read_to, self._max_records)
        return self._buffer(partition, decoded) if is_assigned() else None

    def _return_to_log(self, partition: Partition, start: int) -> Partition:
        """Continue at the log's start: the log no longer has the position, or does not have it yet."""
        tp, position = partition.tp, partition.read_to
        details = {"topic": tp.topic, "partition": tp.partition, "position": position, "log_start": start}
        partition.fault = None
        if start > position:
            self._metrics.records_lost.add(start - position, tp.topic)
            _LOG.error("lost records to retention", extra={**details, "records": start - position})
            partition.skip_to(start)
            return partition
        _LOG.error("the log ends before the position: it was truncated, or the topic is a new one", extra=details)
        self._on_fenced(partition.committed_offset.fence())
        return Partition(tp, start, None)

    def _buffer(self, partition: Partition, decoded: Decoded | None) -> Partition | None:
        """Keep what was read by hand. A batch whose end is unknown holds its partition until another follows."""
        tp, offset = partition.tp, partition.read_to
        details = {"topic": tp.topic, "partition": tp.partition, "offset": offset}
        if decoded is None:
            partition.blocked_until_s = asyncio.get_running_loop().time() + _BLOCKED_S
            _LOG.error("cannot read a record batch; its partition waits", extra=details)
            return None
        partition.fault = None
        if decoded.lost:
            self._metrics.corrupt_batches.add(1, tp.topic)
            self._metrics.records_lost.add(decoded.lost, tp.topic)
            _LOG.error(
                "a record batch is corrupt: it becomes one dead letter", extra={**details, "records": decoded.lost}
            )
        if decoded.after > offset:
            partition.buffer(decoded.records, decoded.after)
        return partition
