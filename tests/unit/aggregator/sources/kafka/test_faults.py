"""Where a partition is read on when aiokafka cannot decode what is there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition

from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.faults import Decoded, FaultHandler, ReadByHand, wait_for_people
from aggregator.sources.kafka.offsets import Fault, Partition, RawRecord
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.support.virtual_time import in_virtual_time

TP = TopicPartition("topic", 2)


def by_hand(decoded: Decoded) -> ReadByHand:
    async def read(*_: Any) -> Decoded:
        await asyncio.sleep(0)
        return decoded

    return read


async def handled(read: ReadByHand, *, assigned: bool = True) -> tuple[Partition, Partition | None, Metrics]:
    """A partition at offset 10, where it is read on, and what was counted."""
    partition, metrics = Partition(TP, 10, 10), Metrics(MetricsBuffer())
    partition.fault = Fault.UNDECODABLE
    handler = FaultHandler(KafkaSettings(), None, metrics, lambda _: None, read)
    return partition, await handler.handle(partition, lambda: assigned), metrics


@in_virtual_time
async def test_a_partition_that_nobody_can_read_waits_where_it_is() -> None:
    partition, good, _ = await handled(wait_for_people)
    assert good is None
    assert (partition.read_to, partition.fault) == (10, Fault.UNDECODABLE)
    assert partition.blocked_until_s > asyncio.get_running_loop().time()


@in_virtual_time
async def test_what_is_read_by_hand_is_kept_and_its_records_count_as_lost() -> None:
    record = RawRecord(TP.topic, TP.partition, 10, -1, None, b"batch", (), "it cannot be decoded")
    partition, good, metrics = await handled(by_hand(Decoded([record], 20, lost=10)))
    assert good is partition
    assert (partition.read_to, partition.fault) == (20, None)
    assert (metrics.corrupt_batches.total, metrics.records_lost.total) == (1, 10)


@pytest.mark.parametrize("assigned", [True, False])
@in_virtual_time
async def test_without_a_record_there_nothing_changes(*, assigned: bool) -> None:
    partition, good, _ = await handled(by_hand(Decoded((), 10)), assigned=assigned)
    assert (good, partition.read_to) == (partition if assigned else None, 10)
