"""A partition waits when too much of it is out, whether settled behind a straggler or not settled at all."""

from __future__ import annotations

from aiokafka import TopicPartition

from aggregator.adapters.kafka_partitions import Partition
from aggregator.core.watermark import Lease, Watermark


def _partition_with(count: int) -> tuple[Partition, Watermark, list[Lease]]:
    partition = Partition(TopicPartition("requests", 0))
    partition.place(0, None)
    assert partition.watermark is not None
    return partition, partition.watermark, [partition.watermark.deliver(offset, None) for offset in range(count)]


def test_records_that_nobody_settles_pause_their_partition_and_resume_it_well_below_the_cap() -> None:
    partition, watermark, leases = _partition_with(101)
    partition.watch_span(100)
    assert partition.over_span
    for lease in leases[:20]:
        watermark.settle(lease)
    partition.watch_span(100)
    assert partition.over_span
    for lease in leases[20:30]:
        watermark.settle(lease)
    partition.watch_span(100)
    assert not partition.over_span


def test_one_straggler_pauses_its_partition_once_too_much_is_settled_behind_it() -> None:
    partition, watermark, leases = _partition_with(102)
    for lease in leases[1:]:
        watermark.settle(lease)
    partition.watch_span(101)
    assert partition.over_span
    watermark.settle(leases[0])
    partition.watch_span(101)
    assert not partition.over_span
