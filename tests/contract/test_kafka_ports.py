"""What the pipeline may rely on in Kafka's intake and output, of the fake and of Apache Kafka alike."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiokafka import errors as kafka_errors

from aggregator.sources.kafka.offsets import InFlightRecord
from aggregator.sources.kafka.outgoing import OutgoingRecord
from tests.support.kafka_clusters import Cluster, complete, produce, reading, records_of, send_all, until_committed
from tests.support.until import until


async def test_every_record_comes_once_and_in_order_as_it_was_written(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=3)
    await produce(cluster, records_of(topic, 300))
    written = await cluster.read(topic)
    async with reading(cluster, cluster.settings(topic, max_poll_records=50)) as intake:
        in_flight_records = await intake.take(300)
        assert len({(in_flight.partition, in_flight.offset) for in_flight in in_flight_records}) == 300
        for partition in range(3):
            came = [in_flight for in_flight in in_flight_records if in_flight.partition == partition]
            wanted = [record for record in written if record.partition == partition]
            assert [(each.offset, each.key, each.value, tuple(each.headers)) for each in came] == [
                (each.offset, each.key, each.value, tuple(each.headers)) for each in wanted
            ]
        await intake.nothing()


async def test_a_start_position_is_committed_before_anything_is_completed(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=2)
    await produce(cluster, records_of(topic, 5, partition=0))
    await cluster.expire(topic, 0, 2)
    async with reading(cluster, cluster.settings(topic)):
        await until_committed(cluster, topic, {0: 2, 1: 0})


async def test_the_commit_and_a_successor_stand_at_the_first_unfinished_record(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    await produce(cluster, records_of(topic, 10))
    async with reading(cluster, cluster.settings(topic)) as intake:
        in_flight_records = await intake.take(10)
        complete(in_flight_records[:4] + in_flight_records[6:])
        await until_committed(cluster, topic, {0: 4})
        assert {tp: each.committed_offset.span for tp, each in intake.consumer.partitions.items()} == {(topic, 0): 6}
    assert [in_flight.offset for in_flight in intake.fenced] == [4, 5]
    async with reading(cluster, cluster.settings(topic)) as successor:
        assert [in_flight.offset for in_flight in await successor.take(6)] == [4, 5, 6, 7, 8, 9]
        complete(successor.in_flight_records)
    assert await cluster.committed(topic) == {0: 10}


async def test_a_fenced_lease_completes_without_effect(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    await produce(cluster, records_of(topic, 3))
    async with reading(cluster, cluster.settings(topic)) as intake:
        await intake.take(3)
    complete(intake.in_flight_records)
    assert intake.fenced == intake.in_flight_records
    assert await cluster.committed(topic) == {0: 0}


async def test_held_topics_wait_while_others_flow(cluster: Cluster) -> None:
    held, free = await cluster.create_topic(), await cluster.create_topic()
    async with reading(cluster, cluster.settings(held, free)) as intake:
        await produce(cluster, [*records_of(held, 5), *records_of(free, 5)])
        await intake.take(10)
        intake.consumer.pause(frozenset({held}))
        await produce(cluster, [*records_of(held, 5), *records_of(free, 5)])
        assert {in_flight.topic for in_flight in await intake.take(5)} == {free}
        await intake.nothing()
        assert intake.consumer.paused() == {(held, 0)}
        await produce(cluster, records_of(free, 5))
        assert {in_flight.topic for in_flight in await intake.take(5)} == {free}
        intake.consumer.pause(frozenset())
        assert [in_flight.offset for in_flight in await intake.take(5)] == [5, 6, 7, 8, 9]
        assert not intake.consumer.paused()


async def test_a_hold_that_comes_while_records_are_waited_for_holds(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    async with reading(cluster, cluster.settings(topic)) as intake:
        await until_committed(cluster, topic, {0: 0})
        waiting = asyncio.create_task(intake.take(5))
        await asyncio.sleep(0.1)
        intake.consumer.pause(frozenset({topic}))
        await produce(cluster, records_of(topic, 5))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        intake.consumer.pause(frozenset())
        assert [in_flight.offset for in_flight in await waiting] == [0, 1, 2, 3, 4]


async def test_only_the_partition_over_its_span_cap_waits(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=2)
    await produce(cluster, [*records_of(topic, 40, partition=0), *records_of(topic, 40, partition=1)])
    async with reading(cluster, cluster.settings(topic, max_commit_span=20, max_poll_records=8)) as intake:
        stuck: list[InFlightRecord] = []
        offsets: dict[int, list[int]] = {0: [], 1: []}
        with contextlib.suppress(TimeoutError):
            while True:
                all_that_may_come = len(offsets[0]) > 20 and len(offsets[1]) == 40
                async with asyncio.timeout(1.5 if all_that_may_come else 60.0):
                    in_flight_records = await intake.consumer.fetch()
                for in_flight in in_flight_records:
                    offsets[in_flight.partition].append(in_flight.offset)
                stuck = stuck or [in_flight for in_flight in in_flight_records if in_flight.partition == 0][:1]
                complete([in_flight for in_flight in in_flight_records if in_flight not in stuck])
        assert offsets[1] == list(range(40))
        reached = len(offsets[0])
        assert 20 < reached < 40
        assert intake.consumer.paused() == {(topic, 0)}
        complete(stuck)
        assert [in_flight.offset for in_flight in await intake.take(40 - reached)] == list(range(reached, 40))
        assert not intake.consumer.paused()


async def test_a_second_member_takes_over_only_what_the_first_has_drained(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=4)
    await produce(cluster, [each for partition in range(4) for each in records_of(topic, 10, partition=partition)])
    settings = cluster.settings(topic, drain_timeout_s=15.0)
    async with reading(cluster, settings) as first:
        in_flight_records = await first.take(40)
        complete(in_flight_records[:30])
        async with reading(cluster, settings) as second:
            await asyncio.sleep(1.5)
            assert first.fenced == []
            assert sum((await cluster.committed(topic)).values()) <= 30
            complete(in_flight_records[30:])
            await until_committed(cluster, topic, dict.fromkeys(range(4), 10))
            await until(lambda: first.counts.rebalances.total > 0)
            await produce(cluster, [each for at in range(4) for each in records_of(topic, 5, partition=at)])
            both = await asyncio.gather(first.take(10), second.take(10))
            partitions = [{in_flight.partition for in_flight in taken} for taken in both]
            assert partitions[0] | partitions[1] == {0, 1, 2, 3}
            assert not partitions[0] & partitions[1]
            assert all(in_flight.offset >= 10 for taken in both for in_flight in taken)
            complete([in_flight for taken in both for in_flight in taken])
        assert first.fenced == []
    assert await cluster.committed(topic) == dict.fromkeys(range(4), 15)


async def test_what_is_given_back_is_committed_to_its_first_unfinished_record(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=2)
    await produce(cluster, [*records_of(topic, 5, partition=0), *records_of(topic, 5, partition=1)])
    # No commit but that of giving back comes in time.
    settings = cluster.settings(topic, drain_timeout_s=0.5, commit_interval_s=60.0)
    async with reading(cluster, settings) as first:
        in_flight_records = await first.take(10)
        complete([in_flight for in_flight in in_flight_records if in_flight.offset != 2 + in_flight.partition])
        async with reading(cluster, settings):
            await until_committed(cluster, topic, {0: 2, 1: 3})


async def test_what_is_complete_when_a_member_ends_is_committed(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    await produce(cluster, records_of(topic, 10))
    async with reading(cluster, cluster.settings(topic, commit_interval_s=30.0)) as intake:
        complete((await intake.take(10))[:7])
    await until_committed(cluster, topic, {0: 7})


async def test_what_is_not_drained_in_time_is_fenced_told_and_delivered_again(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=2)
    await produce(cluster, [*records_of(topic, 5, partition=0), *records_of(topic, 5, partition=1)])
    settings = cluster.settings(topic, drain_timeout_s=0.5)
    async with reading(cluster, settings) as first:
        complete([in_flight for in_flight in await first.take(10) if in_flight.offset < 2])
        async with reading(cluster, settings) as second:
            again = await asyncio.gather(first.take(3), second.take(3))
            assert sorted(in_flight.offset for in_flight in first.fenced) == [2, 2, 3, 3, 4, 4]
            complete(first.fenced)
            assert [[in_flight.offset for in_flight in taken] for taken in again] == [[2, 3, 4], [2, 3, 4]]
            await asyncio.sleep(0.3)
            assert await cluster.committed(topic) == {0: 2, 1: 2}


async def test_records_that_retention_took_are_counted(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    await produce(cluster, records_of(topic, 10))
    async with reading(cluster, cluster.settings(topic)) as intake:
        complete((await intake.take(10))[:3])
        await until_committed(cluster, topic, {0: 3})
    await cluster.expire(topic, 0, 8)
    async with reading(cluster, cluster.settings(topic)) as successor:
        assert [in_flight.offset for in_flight in await successor.take(2)] == [8, 9]
        assert successor.counts.records_lost.total == 5
        complete(successor.in_flight_records)
        await until_committed(cluster, topic, {0: 10})


async def test_lag_counts_what_was_not_handed_out(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    await produce(cluster, records_of(topic, 30))
    async with reading(cluster, cluster.settings(topic, max_poll_records=10)) as intake:
        await intake.take(10)
        assert {tp: each.lag_records for tp, each in intake.consumer.partitions.items()} == {(topic, 0): 20}
        assert intake.consumer.healthy


async def test_stopping_lets_what_is_out_complete(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    await produce(cluster, records_of(topic, 20))
    async with reading(cluster, cluster.settings(topic, max_poll_records=5)) as intake:
        in_flight_records = await intake.take(5)
        waiting = asyncio.create_task(intake.consumer.fetch())
        intake.consumer.stop_fetching()
        assert list(await waiting) == []
        assert list(await intake.consumer.fetch()) == []
        complete(in_flight_records)
    assert await cluster.committed(topic) == {0: 5}
    assert intake.fenced == []


async def test_each_record_has_its_own_word(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=3, max_message_bytes="100000")
    producer = cluster.producer(cluster.settings())
    await producer.start()
    good = records_of(topic, 20)
    bad = [
        OutgoingRecord(topic, 3, None, b"no such partition", []),
        OutgoingRecord("nowhere", None, b"k", b"no such topic", []),
        OutgoingRecord(topic, None, b"key-0", b"x" * 200_000, []),
    ]
    mixed = [*good[:10], *bad, *good[10:]]
    for _ in range(2):
        words = await send_all(producer, mixed)
        assert [type(word) for word in words[10:13]] == [
            kafka_errors.UnknownTopicOrPartitionError,
            kafka_errors.UnknownTopicOrPartitionError,
            kafka_errors.MessageSizeTooLargeError,
        ]
        assert not any([*words[:10], *words[13:]])
    await producer.close(5)
    written = await cluster.read(topic)
    assert sorted(int(record.value or b"") for record in written) == sorted([*range(20)] * 2)
    assert {record.key: record.headers for record in written}[b"key-7"] == (("n", b"7"),)


async def test_the_delivery_of_each_record_is_told_once_however_many_there_are(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=3)
    producer = cluster.producer(cluster.settings())
    await producer.start()
    records = [*records_of(topic, 20), OutgoingRecord("nowhere", None, b"k", b"no such topic", [])]
    told = [each async for delivered in producer.send(records) for each in delivered]
    await producer.close(5)
    assert sorted(position for position, _ in told) == list(range(21))
    assert [position for position, error in told if error is not None] == [20]


async def test_keys_and_named_partitions_decide_where_records_go(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=3)
    keyed = [OutgoingRecord(topic, None, b"foobar", b"%d" % each, []) for each in range(20)]
    await produce(cluster, keyed[:3])  # few keys and many are hashed in different ways
    await produce(cluster, [*keyed[3:], OutgoingRecord(topic, 2, b"foobar", b"named", [])])
    written = await cluster.read(topic)
    assert {record.partition for record in written if record.value != b"named"} == {(-790332482 & 0x7FFFFFFF) % 3}
    assert [record.partition for record in written if record.value == b"named"] == [2]


async def test_a_closed_producer_says_so(cluster: Cluster) -> None:
    producer = cluster.producer(cluster.settings())
    await producer.start()
    await producer.close(1)
    with pytest.raises(kafka_errors.ProducerClosed):
        await send_all(producer, records_of("anything", 1))
