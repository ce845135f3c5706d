"""A partition waits when too much of it is out, whether completed behind a straggler or not completed at all."""

from __future__ import annotations

from aiokafka import TopicPartition

from aggregator.sources.kafka.consumer.committed_offset import CommittedOffset, InFlightRecord
from aggregator.sources.kafka.consumer.partitions import Assignment, Partition
from aggregator.sources.kafka.consumer.topic_ids import NO_ID, id_text
from tests.fakes.records import FakeRecord, record_at


def _partition_with(count: int) -> tuple[Partition, CommittedOffset, list[InFlightRecord]]:
    partition = Partition(TopicPartition("requests", 0), 0, None)
    return (
        partition,
        partition.committed_offset,
        [partition.committed_offset.deliver(record_at(offset)) for offset in range(count)],
    )


def test_records_that_nobody_completes_pause_their_partition_and_resume_it_well_below_the_cap() -> None:
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


def test_one_straggler_pauses_its_partition_once_too_much_is_completed_behind_it() -> None:
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


def _assignment(*numbers: int) -> Assignment:
    """Partitions of one topic, placed at offset 0."""
    assignment = Assignment(1, "me", [TopicPartition("requests", number) for number in numbers])
    for tp in assignment.tps:
        assignment.place(tp, 0, None)
    return assignment


def _committed_offsets(assignment: Assignment) -> list[CommittedOffset]:
    return [partition.committed_offset for partition in assignment.partitions.values()]


def test_what_holds_its_partitions_committed_offset_back_is_to_be_aged_past_half_of_the_cap() -> None:
    assignment = _assignment(0, 1, 2)
    held_back, completed, slow = (
        [mark.deliver(record_at(offset)) for offset in range(40)] for mark in _committed_offsets(assignment)
    )
    for in_flight in held_back[1:10]:
        in_flight.committed_offset.complete(in_flight)
    for in_flight in completed:
        in_flight.committed_offset.complete(in_flight)
    for in_flight in slow[1:9]:
        in_flight.committed_offset.complete(in_flight)
    assert assignment.half_span_holders(20) == []
    held_back[10].committed_offset.complete(held_back[10])
    assert assignment.half_span_holders(20) == [held_back[0]]
    held_back[0].committed_offset.complete(held_back[0])
    assert assignment.half_span_holders(20) == []


def test_a_partition_that_was_never_placed_is_neither_read_nor_committed() -> None:
    tps = [TopicPartition("requests", number) for number in range(2)]
    assignment = Assignment(1, "me", tps)
    assignment.place(tps[1], 7, None)
    assert assignment.readable(frozenset(), 100, 0.0) == [assignment.partitions[tps[1]]]
    assert assignment.moved() == {tps[1]: 7}
    assert assignment.half_span_holders(100) == assignment.fence() == []


def test_only_partitions_with_nothing_to_wait_for_are_read() -> None:
    tps = [TopicPartition(topic, number) for topic, number in (("a", 0), ("a", 1), ("a", 2), ("a", 3), ("held", 0))]
    assignment = Assignment(1, "me", tps)
    for tp in tps:
        assignment.place(tp, 0, None)
    read, fetched, wide, blocked, _ = (assignment.partitions[tp] for tp in tps)
    fetched.fetched = [record_at(0)]
    wide.fetched, wide.read_to = [record_at(offset) for offset in range(101)], 101
    wide.deliver()
    blocked.blocked_until_s = 5.0
    held = frozenset({"held"})
    assert assignment.readable(held, 100, 4.9) == [read]
    assert assignment.readable(held, 100, 5.0) == [read, blocked]
    assignment.over = True
    assert assignment.readable(held, 100, 9.0) == []


def test_what_is_to_be_committed_is_what_the_group_does_not_have_yet() -> None:
    tps = [TopicPartition("requests", number) for number in range(3)]
    assignment = Assignment(1, "me", tps)
    for tp, committed in zip(tps, (None, 10, 10), strict=True):
        assignment.place(tp, 10, committed)
    last = assignment.partitions[tps[2]]
    last.fetched, last.read_to = [record_at(10), record_at(12)], 15
    in_flight_records = last.deliver()
    assert assignment.unfinished == 2
    assert assignment.moved() == {tps[0]: 10}
    in_flight_records[0].committed_offset.complete(in_flight_records[0])
    assert assignment.moved() == {tps[0]: 10, tps[2]: 12}
    in_flight_records[1].committed_offset.complete(in_flight_records[1])
    assert assignment.moved() == {tps[0]: 10, tps[2]: 15}
    assert assignment.unfinished == 0


def test_reading_goes_on_behind_what_was_read_and_never_back() -> None:
    partition = Partition(TopicPartition("requests", 0), 10, 10)
    assert (partition.read_to, partition.delivered_to, partition.committed) == (10, 10, 10)
    assert (partition.committed_offset.topic, partition.committed_offset.partition) == ("requests", 0)
    partition.fetched, partition.read_to = [record_at(10), record_at(11)], 20
    assert [in_flight.offset for in_flight in partition.deliver()] == [10, 11]
    assert (partition.read_to, partition.delivered_to) == (20, 20)
    assert not partition.fetched
    partition.read_to = 30
    partition.skip_to(25)
    assert (partition.read_to, partition.delivered_to) == (30, 25)
    partition.skip_to(5)
    assert (partition.read_to, partition.delivered_to) == (30, 25)


def test_what_was_fetched_is_handed_out_unless_its_topic_is_held_or_its_assignment_is_over() -> None:
    tps = [TopicPartition(topic, 0) for topic in ("a", "b", "c")]
    assignment = Assignment(1, "me", tps)
    for tp in tps:
        assignment.place(tp, 0, None)
        assignment.partitions[tp].fetched = [FakeRecord(tp.topic, 0, 0, 0, None, b"")]
    assert [in_flight.topic for in_flight in assignment.deliver(frozenset({"b", "c"}))] == ["a"]
    assert [in_flight.topic for in_flight in assignment.deliver(frozenset({"c"}))] == ["b"]
    assignment.over = True
    assert assignment.deliver(frozenset()) == []


def test_a_fenced_assignment_reads_nothing_commits_nothing_new_and_names_what_nobody_completed() -> None:
    assignment = _assignment(0, 1)
    first, second = _committed_offsets(assignment)
    in_flight_records = [first.deliver(record_at(0)), first.deliver(record_at(1)), second.deliver(record_at(0))]
    first.complete(in_flight_records[0])
    states = [(assignment.over, assignment.fenced)]
    assert assignment.fence() == in_flight_records[1:]
    assert [*states, (assignment.over, assignment.fenced)] == [(False, False), (True, True)]
    assert assignment.readable(frozenset(), 100, 0.0) == []
    for in_flight in in_flight_records[1:]:
        in_flight.committed_offset.complete(in_flight)
    assert [mark.position for mark in (first, second)] == [1, 0]


def test_a_partition_is_known_by_its_topics_id() -> None:
    partition = Partition(TopicPartition("requests", 0), 7, None, topic_id=bytes(range(16)))
    assert partition.committed_offset.topic_id == id_text(bytes(range(16))) != id_text(NO_ID)
