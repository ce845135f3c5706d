"""Find where a partition is read on when its position is out of range, or a record there cannot be decoded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.aiokafka_internals import AbortedTransaction, raw_batches
from aggregator.sources.kafka.committed_offset import InFlightRecord
from aggregator.sources.kafka.partition import Fault, Partition
from aggregator.sources.kafka.undecodable import decode

_LOG = logging.getLogger(__name__)
_BLOCKED_S = 10.0

OnFenced = Callable[[Sequence[InFlightRecord]], None]
"""Receives the records that were not complete when their partition was revoked: the new owner processes them."""


class FaultHandler:
    """Handles the faults of one member's partitions. Calls do not overlap."""

    def __init__(self, settings: KafkaSettings, client: Any, metrics: Metrics, on_fenced: OnFenced) -> None:
        self._max_records = settings.client.max_poll_records
        self._client = client
        self._metrics = metrics
        self._on_fenced = on_fenced

    async def handle(self, partition: Partition, is_assigned: Callable[[], bool]) -> Partition | None:
        """The partition to read on with, at a position that can be read; None to try again later, or if it was revoked.

        Raises KafkaError or TimeoutError.
        """
        if partition.fault is Fault.OUT_OF_RANGE:
            start = (await self._client.beginning_offsets([partition.tp]))[partition.tp]
            return self._return_to_log(partition, start) if is_assigned() else None
        raw = await raw_batches(self._client, partition.tp, partition.read_to)
        return self._decode(partition, *raw) if is_assigned() else None

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

    def _decode(
        self, partition: Partition, data: bytes, aborted: Sequence[AbortedTransaction], log_end: int
    ) -> Partition | None:
        """Decode here what aiokafka cannot. A batch whose end is unknown holds its partition until another follows."""
        tp, offset = partition.tp, partition.read_to
        details = {"topic": tp.topic, "partition": tp.partition, "offset": offset}
        decoded = decode(data, tp, offset, aborted=aborted, log_end=log_end, max_records=self._max_records)
        if decoded is None and data:
            partition.blocked_until_s = asyncio.get_running_loop().time() + _BLOCKED_S
            _LOG.error("cannot read a record batch; its partition waits", extra=details)
            return None
        partition.fault = None
        if decoded is None:
            return partition
        if decoded.lost:
            self._metrics.corrupt_batches.add(1, tp.topic)
            self._metrics.records_lost.add(decoded.lost, tp.topic)
            _LOG.error(
                "a record batch is corrupt: it becomes one dead letter", extra={**details, "records": decoded.lost}
            )
        partition.keep(decoded.records, decoded.after)
        return partition
