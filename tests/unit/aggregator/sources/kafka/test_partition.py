"""A partition waits when too much of it is out, whether completed behind a straggler or not completed at all."""

from __future__ import annotations

from aiokafka import TopicPartition

from aggregator.sources.kafka.offsets import CommittedOffset, InFlightRecord, Partition, RawRecord
from tests.support.records import record_at


def _partition_with(count: int) -> tuple[Partition, CommittedOffset, list[InFlightRecord]]:
    partition = Partition(TopicPartition("requests", 0), 0, None)
    return (
        partition,
        partition.committed_offset,
        [partition.committed_offset.deliver(record_at(offset)) for offset in range(count)],
    )


def test_incomplete_records_pause_a_partition_until_well_below_the_cap() -> None:
    partition, committed_offset, in_flight_records = _partition_with(101)
    partition.watch_span(100)
    assert partition.over_span
    for in_flight in in_flight_records[:20]:
        committed_offset.complete(in_flight)
    partition.watch_span(100)
    assert partition.over_span
    for in_flight in in_flight_records[20:30]:
        committed_offset.complete(in_flight)
    partition.watch_span(100)
    assert not partition.over_span


def test_one_straggler_pauses_its_partition_once_too_much_is_done_behind() -> None:
    partition, committed_offset, in_flight_records = _partition_with(102)
    for in_flight in in_flight_records[1:]:
        committed_offset.complete(in_flight)
    partition.watch_span(101)
    assert partition.over_span
    committed_offset.complete(in_flight_records[0])
    partition.watch_span(101)
    assert not partition.over_span


def test_a_partition_that_is_read_again_waits_only_at_the_whole_cap() -> None:
    partition, committed_offset, in_flight_records = _partition_with(101)
    partition.watch_span(100)
    for in_flight in in_flight_records[:30]:
        committed_offset.complete(in_flight)
    partition.watch_span(100)
    for offset in range(101, 130):
        committed_offset.deliver(record_at(offset))
    partition.watch_span(100)
    assert (committed_offset.unfinished, partition.over_span) == (100, False)
    committed_offset.deliver(record_at(130))
    partition.watch_span(100)
    assert partition.over_span


def test_reading_goes_on_behind_what_was_read_and_never_back() -> None:
    partition = Partition(TopicPartition("requests", 0), 10, 10)
    assert (partition.read_to, partition.delivered_to, partition.committed) == (10, 10, 10)
    assert (partition.committed_offset.topic, partition.committed_offset.partition) == ("requests", 0)
    partition.buffer([record_at(10)], 11)
    partition.buffer([record_at(11)], 20)
    partition.buffer([], 15)
    assert [in_flight.offset for in_flight in partition.deliver()] == [10, 11]
    assert (partition.read_to, partition.delivered_to) == (20, 20)
    assert not partition.fetched
    partition.read_to = 30
    partition.skip_to(25)
    assert (partition.read_to, partition.delivered_to) == (30, 25)
    partition.skip_to(5)
    assert (partition.read_to, partition.delivered_to) == (30, 25)
    lag: list[int] = []
    for partition.log_end in (20, 33):
        lag.append(partition.lag_records)
    assert lag == [0, 8]


def test_a_record_that_cannot_be_read_is_handed_out_with_the_reason() -> None:
    partition = Partition(TopicPartition("requests", 0), 10, 10)
    raw = RawRecord("requests", 0, 10, 0, None, b"value", (), unreadable="its codec is not known")
    partition.buffer([raw, record_at(11)], 12)
    assert [each.unreadable for each in partition.deliver()] == ["its codec is not known", ""]
