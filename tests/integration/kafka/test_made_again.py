"""A topic that is deleted and made again under its readers: the new one is read from its start, all of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.metadata import MetadataRequest_v5

from aggregator.sources.kafka.consumer.committed_offset import InFlightRecord
from aggregator.sources.kafka.consumer.offsets import topic_note
from aggregator.sources.kafka.consumer.topic_ids import TopicIdRequest
from aggregator.sources.kafka.records import OutgoingRecord
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import DEFAULT_MODEL_NAME, Aggregator
from tests.fakes.kafka_clusters import RealCluster, complete, produce, reading, records_of, until_committed
from tests.integration.aggregator.conftest import make_topics, synthetic
from tests.integration.aggregator.desk import Topics, open_desk, query, read
from tests.integration.aggregator.scrape import metrics

pytestmark = pytest.mark.kafka


def while_frozen(work: Coroutine[Any, Any, None]) -> None:
    """Do something elsewhere while this event loop, and with it every client on it, stands still."""
    elsewhere = threading.Thread(target=lambda: asyncio.run(work))
    elsewhere.start()
    elsewhere.join()


async def delete(cluster: RealCluster, topic: str) -> None:
    """Delete a topic, and wait until the broker has none of that name."""
    async with cluster.admin() as admin, asyncio.timeout(20):
        await admin.delete_topics([topic])
        while topic in await admin.list_topics():  # noqa: ASYNC110 - a broker calls nobody
            await asyncio.sleep(0.02)


async def make_again(cluster: RealCluster, topic: str, count: int) -> None:
    """Delete a topic, make it again and fill it."""
    await delete(cluster, topic)
    await cluster.create_named_topic(topic)
    await produce(cluster, records_of(topic, count))


async def test_a_topic_made_again_and_filled_beyond_the_position_is_read_from_its_start(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    await produce(shared, records_of(topic, 400))
    async with reading(shared, shared.settings(topic)) as intake:
        complete(await intake.take(400))
        await until_committed(shared, topic, {0: 400})
        while_frozen(make_again(shared, topic, 1000))
        fresh = await intake.take(1000)
        assert [in_flight.offset for in_flight in fresh] == list(range(1000))
        complete(fresh)
        await until_committed(shared, topic, {0: 1000})
        assert intake.counts.lost == 0
        assert len({in_flight.committed_offset.topic_id for in_flight in intake.in_flight_records}) == 2


async def test_what_nobody_had_read_of_a_deleted_topic_is_counted_and_what_is_under_way_is_not_fenced(
    shared: RealCluster,
) -> None:
    topic = await shared.create_topic()
    large = [OutgoingRecord(topic, 0, b"k", bytes(20_000), []) for _ in range(200)]
    await produce(shared, large)
    async with reading(shared, shared.settings(topic, max_poll_records=10)) as intake:
        taken = await intake.take(10)
        while_frozen(make_again(shared, topic, 300))
        fresh: list[InFlightRecord] = []
        while not fresh or fresh[-1].offset != 299:
            fresh += list(await asyncio.wait_for(intake.consumer.fetch(), 20))
        read_of_old = [in_flight for in_flight in fresh if in_flight.value == bytes(20_000)]
        assert [in_flight.offset for in_flight in fresh[len(read_of_old) :]] == list(range(300))
        assert intake.counts.lost == 200 - len(taken) - len(read_of_old) > 0
        assert not any(in_flight.committed_offset.fenced for in_flight in taken)
        complete([*taken, *fresh])
        await until_committed(shared, topic, {0: 300})
    assert intake.fenced == []


async def test_a_topic_that_stays_away_holds_up_no_other_and_is_read_when_it_is_back(shared: RealCluster) -> None:
    topic, other = await shared.create_topic(), await shared.create_topic()
    await produce(shared, [*records_of(topic, 5), *records_of(other, 5)])
    async with reading(shared, shared.settings(topic, other)) as intake:
        complete(await intake.take(10))
        await delete(shared, topic)
        for start in (5, 10, 15):
            await produce(shared, records_of(other, 5, start=start))
            complete(await intake.take(5, timeout_s=10.0))
        await shared.create_named_topic(topic)
        await produce(shared, records_of(topic, 8))
        complete(await intake.take(8, timeout_s=60.0))  # metadata is 30 s old at the most
        await until_committed(shared, topic, {0: 8})


async def test_offsets_of_a_topic_that_was_deleted_while_nobody_read_count_for_nothing(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    await produce(shared, records_of(topic, 40))
    async with reading(shared, shared.settings(topic)) as first:
        complete(await first.take(40))
        await until_committed(shared, topic, {0: 40})
    await make_again(shared, topic, 100)
    await commit(shared, topic, 40, topic_note(b"an id of old....."[:16]))  # as one that was on its way meanwhile
    async with reading(shared, shared.settings(topic)) as second:
        complete(await second.take(100))
        await until_committed(shared, topic, {0: 100})
    async with reading(shared, shared.settings(topic)) as third:
        await third.nothing(1.0)
    await commit(shared, topic, 60, "")  # as an operator who moves the group
    async with reading(shared, shared.settings(topic)) as fourth:
        assert [in_flight.offset for in_flight in await fourth.take(40)] == list(range(60, 100))


async def commit(cluster: RealCluster, topic: str, offset: int, note: str) -> None:
    """Commit for a group that has no members."""
    client = AIOKafkaClient(bootstrap_servers=cluster.bootstrap)
    await client.bootstrap()
    group = f"group-{cluster.name}"
    try:
        coordinator = await client.coordinator_lookup(CoordinationType.GROUP, group)
        request = OffsetCommitRequest(group, -1, "", -1, [(topic, [(0, offset, note)])])
        response = await client.send(coordinator, request)
        assert response.topics[0][1][0][1] == 0
    finally:
        await client.close()


async def test_brokers_that_know_no_ids_are_asked_by_name(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    await produce(shared, records_of(topic, 5))
    with patch.object(TopicIdRequest, "_CLASSES", (MetadataRequest_v5,)):
        async with reading(shared, shared.settings(topic)) as intake:
            complete(await intake.take(5))
            await until_committed(shared, topic, {0: 5})
            assert {in_flight.committed_offset.topic_id for in_flight in intake.in_flight_records} == {""}


@pytest.mark.slow
async def test_a_frozen_aggregator_answers_all_of_a_topic_made_again_and_no_two_replies_share_an_id(
    kafka: KafkaBroker, shared: RealCluster, tmp_path: Path
) -> None:
    topics = Topics(f"{shared.name}.requests", f"{shared.name}.replies")
    await make_topics(kafka.bootstrap, topics.requests, topics.replies, topics.dead_letters)
    settings = {"KAFKA__TOPICS": f'[{{"name": "{topics.requests}"}}]', "KAFKA__REPLY_TOPIC": topics.replies}
    settings |= {"KAFKA__CLIENT__SESSION_TIMEOUT_S": "20"}

    def aggregator(group: str) -> Aggregator:
        return Aggregator(
            tmp_path / f"{group}.log",
            kafka=kafka.bootstrap,
            model=DEFAULT_MODEL_NAME,
            servers=[server.address],
            settings={**settings, "KAFKA__GROUP_ID": f"{shared.name}-{group}"},
        )

    with synthetic(tmp_path / "modelserver.log") as server:
        async with open_desk(kafka.bootstrap, topics) as desk:
            with aggregator("one") as one:
                await desk.exchange(*(query("old", f"{number}") for number in range(400)))
                await desk.until_committed(f"{shared.name}-one")
                one.pause()
                try:
                    await delete(shared, topics.requests)
                    await make_topics(kafka.bootstrap, topics.requests)
                    await desk.produce(*(query("new", f"{number}") for number in range(1000)))
                finally:
                    one.resume()
                await desk.until(lambda: len(desk.replies) >= 1400)
                await desk.until_committed(f"{shared.name}-one")
                assert metrics(one.metrics_address).value("embed_consumer_lost_total", topic=topics.requests) == 0
            with aggregator("two"):
                await desk.until(lambda: len(desk.replies) >= 2400)
                await desk.linger()
    answers = [read(reply) for reply in desk.replies]
    assert len(answers) == len({answer.reply_id for answer in answers}) == 2400
    assert {answer.request_id for answer in answers[:1400]} == {f"{number}" for number in range(1000)}
