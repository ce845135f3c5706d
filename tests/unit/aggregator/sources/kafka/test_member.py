"""A member ends once nothing reaches it any more, and commits the last that is complete when it is told to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.errors import KafkaError
from typing_extensions import override

from aggregator.observability.metrics import Metrics
from aggregator.sources.kafka.answered import Answer
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.offsets import InFlightRecord
from k8s.pod.errors import StartError
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.support.fake_kafka import FakeKafka, FakeMember
from tests.support.kafka_clusters import complete
from tests.support.simulated_group import SETTINGS
from tests.support.virtual_time import in_virtual_time

TP = TopicPartition("in", 0)


class Deaf(FakeMember):
    """Its fetches bring nothing, without a word."""

    @override
    async def getmany(self, *tps: TopicPartition, timeout_ms: int, max_records: int) -> Mapping[Any, Any]:
        del tps, max_records
        await asyncio.sleep(timeout_ms / 1000)
        return {}

    @override
    def last_poll_timestamp(self, tp: TopicPartition) -> int:
        del tp
        return 1


class Unconfirmed(FakeMember):
    """Nothing that it commits is answered."""

    @override
    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        del offsets
        raise kafka_errors.RequestTimedOutError


class Broken(FakeMember):
    """Its coordination ends."""

    failure = kafka_errors.KafkaError("it broke")


class Reader:
    """A consumer that is read from without a pause."""

    def __init__(self, kafka: FakeKafka, member: Callable[..., Any] = FakeMember) -> None:
        self.members: list[FakeMember] = []
        self.fenced: list[InFlightRecord] = []
        self.taken: list[InFlightRecord] = []
        self.counts = Metrics(MetricsBuffer())

        def made(*arguments: Any) -> FakeMember:
            one: FakeMember = member(*arguments)
            self.members.append(one)
            return one

        kind: Any = made
        self.consumer: KafkaConsumer = kafka.consumer(SETTINGS, self.fenced.extend, member=kind, counts=self.counts)
        self.running = asyncio.create_task(self.consumer.run())
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while found := await self.consumer.fetch():
            self.taken += found

    async def close(self) -> None:
        await self.consumer.close(5.0)
        await asyncio.gather(self.running, self.reading)


def a_log(count: int) -> FakeKafka:
    kafka = FakeKafka("in")
    for number in range(count):
        kafka.logs[TP].append(b"%d" % number, b"text")
    return kafka


@pytest.mark.parametrize("member", [Deaf, Unconfirmed, Broken])
@in_virtual_time
async def test_a_member_that_nothing_reaches_is_replaced(member: type[FakeMember]) -> None:
    reader = Reader(a_log(1), member)
    await asyncio.sleep(300.0)
    assert len(reader.members) > 1
    await reader.close()


@in_virtual_time
async def test_a_member_that_reads_and_commits_is_kept() -> None:
    kafka = a_log(3)
    reader = Reader(kafka)
    await asyncio.sleep(350.0)
    complete(reader.taken)
    await asyncio.sleep(350.0)
    assert len(reader.members) == 1
    assert reader.consumer.healthy
    assert kafka.committed == {TP: 3}
    await reader.close()


@in_virtual_time
async def test_what_completes_during_a_commit_is_committed_before_leaving() -> None:
    kafka = a_log(6)
    reader = Reader(kafka)
    await asyncio.sleep(3.0)
    kafka.held = True
    complete(reader.taken[:2])
    await asyncio.sleep(3.0)
    assert [dict(commit.offsets) for commit in kafka.sent] == [{TP: 2}]
    complete(reader.taken[2:5])
    closing = asyncio.create_task(reader.close())
    await asyncio.sleep(0.1)
    kafka.held = False
    kafka.answer(kafka.sent[0])
    await closing
    assert kafka.committed == {TP: 5}
    assert [each.offset for each in reader.fenced] == [5]


@in_virtual_time
async def test_the_next_member_knows_which_records_may_have_been_answered() -> None:
    kafka = a_log(6)
    kafka.topic_ids[TP.topic] = "id"
    reader = Reader(kafka)
    await asyncio.sleep(3.0)
    for record in reader.taken[1:4:2]:
        record.committed_offset.complete(record, Answer("m", "r1"))
    await asyncio.sleep(3.0)
    assert kafka.committed == {TP: 0}, "the first record holds the position back"
    await reader.close()
    second = Reader(kafka)
    await asyncio.sleep(3.0)
    assert [record.replay for record in second.taken] == [True] * 4 + [False] * 2
    before = second.taken[0].committed_offset
    assert (before.answered_before.model_revision(3, "m"), before.topic_id) == ("r1", "id")
    await second.close()


@in_virtual_time
async def test_a_broker_that_takes_no_metadata_gets_the_offsets_alone() -> None:
    kafka = a_log(4)
    kafka.most_metadata_bytes = 10
    reader = Reader(kafka)
    await asyncio.sleep(3.0)
    complete(reader.taken[1:])
    await asyncio.sleep(3.0)
    complete(reader.taken[:1])
    await asyncio.sleep(3.0)
    assert (kafka.committed, set(kafka.metadata.values())) == ({TP: 4}, {""})
    await reader.close()


@in_virtual_time
async def test_partitions_of_a_deleted_topic_are_given_up_and_read_once_back() -> None:
    kafka = a_log(2)
    reader = Reader(kafka)
    await asyncio.sleep(3.0)
    log = kafka.logs.pop(TP)
    await asyncio.sleep(10.0)
    ready = [reader.consumer.healthy]
    kafka.logs[TP] = log
    await asyncio.sleep(20.0)
    assert [*ready, reader.consumer.healthy] == [False, True]
    assert [each.offset for each in reader.taken] == [0, 1, 0, 1]  # they were not complete
    assert len(reader.members) == 1
    await reader.close()


@in_virtual_time
async def test_an_offset_before_the_log_s_start_goes_on_there_and_counts_losses() -> None:
    kafka = a_log(10)
    kafka.committed[TP] = 2
    kafka.logs[TP].start = 7
    reader = Reader(kafka)
    await asyncio.sleep(3.0)
    assert [each.offset for each in reader.taken] == [7, 8, 9]
    assert reader.counts.records_lost.total == 5
    assert not reader.fenced
    await reader.close()


@in_virtual_time
async def test_an_offset_behind_the_log_s_end_restarts_it_and_gives_up_records() -> None:
    class Shorter(FakeMember):
        """A new topic of the old name."""

        @override
        async def getmany(self, *tps: TopicPartition, timeout_ms: int, max_records: int) -> Mapping[Any, Any]:
            position = self._positions.get(TP)
            if position is not None and position > self.kafka.logs[TP].end:
                raise kafka_errors.OffsetOutOfRangeError({TP: position})
            return await super().getmany(*tps, timeout_ms=timeout_ms, max_records=max_records)

    kafka = a_log(5)
    reader = Reader(kafka, Shorter)
    await asyncio.sleep(3.0)
    complete(reader.taken[:3])
    await asyncio.sleep(3.0)
    kafka.logs[TP].records, kafka.logs[TP].end = [], 0
    kafka.logs[TP].append(b"new", b"text")
    await asyncio.sleep(3.0)
    assert [each.offset for each in reader.fenced] == [3, 4]
    assert [each.offset for each in reader.taken] == [0, 1, 2, 3, 4, 0]
    complete(reader.taken[5:])
    await asyncio.sleep(3.0)
    assert kafka.committed == {TP: 1}
    assert reader.counts.records_lost.total == 0
    await reader.close()


@in_virtual_time
async def test_a_credential_file_caught_in_rotation_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    made: list[FakeMember] = []
    unreadable = [True]

    def member(*arguments: Any) -> FakeMember:
        if unreadable:
            unreadable.pop()
            raise StartError("kafka: one is no PEM file")
        made.append(FakeMember(*arguments))
        return made[-1]

    kafka = a_log(2)
    reader = Reader(kafka, member)
    with pytest.raises(StartError, match="no PEM file"):
        await reader.running
    reader.running = asyncio.create_task(reader.consumer.run())
    await asyncio.sleep(3.0)
    made[0].failure = kafka_errors.KafkaError("it broke")
    unreadable += [True] * 3
    await asyncio.sleep(60.0)
    assert not unreadable
    assert len(made) == 2
    said: list[str] = [vars(each)["error"] for each in caplog.records if each.message == "lost the consumer group"]
    assert sum("no PEM file" in error for error in said) == 3
    complete(reader.taken[-2:])
    await asyncio.sleep(3.0)
    assert kafka.committed == {TP: 2}
    await reader.close()


@pytest.mark.parametrize("turns", range(8), ids=lambda turns: f"{turns} turns after it")
@in_virtual_time
async def test_the_intake_ends_when_it_is_cancelled_while_a_membership_breaks(
    turns: int,
) -> None:
    broke = asyncio.Event()

    class Breaking(FakeMember):
        @override
        def partitions_for_topic(self, topic: str) -> set[int]:
            del topic
            broke.set()
            raise KafkaError("it broke")

    consumer = FakeKafka("in").consumer(SETTINGS, member=Breaking)
    running = asyncio.create_task(consumer.run())
    await broke.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=60.0)
    ended = running.done()
    await consumer.close(0.0)
    assert ended
