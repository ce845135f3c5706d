"""Topics grow, lose their oldest records, vanish and are forbidden under load: only what they concern is held up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions, RecordsToDelete
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.part import responds
from tests.faults.rows import Figures
from tests.faults.scene import Scene
from tests.faults.steady_load import Intent, Maker, Planned, question
from tests.faults.topic_logs import connected_admin, read_topics
from tests.integration.aggregator.desk import PROTOBUF, Sent, committed
from tests.integration.aggregator.scrape import metrics
from tests.integration.kafka.test_security import GuardedCluster, guarded_broker

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

__all__ = ["guarded_broker"]

TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL = 3
READ, WRITE, DESCRIBE, IDEMPOTENT_WRITE = 3, 4, 8, 12
DENY = 2


@pytest.mark.row("partitions added to the requests")
async def test_new_partitions_are_read_from_their_start(scene: Scene, figures: Figures) -> None:
    await scene.server()
    await scene.aggregator()
    async with scene.under_load():
        async with scene.fault():
            more = NewPartitions(2 * scene.partitions)
            async with connected_admin(scene.kafka) as admin:
                await admin.create_partitions({scene.topics.requests: more, scene.topics.dead_letters: more})
        async with asyncio.timeout(90):
            while len(await committed(scene.kafka, scene.topics.requests)) < 2 * scene.partitions:  # noqa: ASYNC110 - a group calls nobody
                await asyncio.sleep(0.5)
        await scene.answers(1500)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert {partition for partition, _ in scene.load.acknowledged.values()} == set(range(2 * scene.partitions))


@pytest.mark.row("retention deletes unread records")
@pytest.mark.short
async def test_what_retention_took_is_counted(scene: Scene, figures: Figures) -> None:
    await scene.server()
    first = await scene.aggregator()
    async with scene.under_load():
        assert await scene.stop(first) == [0]
        await scene.load.send(2000)
    async with scene.fault():
        await scene.load.flush()
        reached = await committed(scene.kafka, scene.topics.requests)
        scene.kept_requests = [
            record
            async for record in read_topics(scene.kafka, scene.topics.requests)
            if record.offset < reached[record.topic, record.partition]
        ]
        gone = {number: reached[scene.topics.requests, number] + 100 * number for number in range(scene.partitions)}
        async with connected_admin(scene.kafka) as admin:
            places = {TopicPartition(scene.topics.requests, number): RecordsToDelete(gone[number]) for number in gone}
            await admin.delete_records(places)
        second = await scene.aggregator()
    assert await scene.drained()
    counted = metrics(second.metrics_address).value("embed_consumer_lost_total", topic=scene.topics.requests)
    starts = {number: reached[scene.topics.requests, number] for number in gone}
    deleted = [key for key, (part, at) in scene.load.acknowledged.items() if starts[part] <= at < gone[part]]
    verdict = figures.take(await scene.verdict(deleted=deleted), deleted=len(deleted), counted=counted)
    assert verdict.problems == ()
    assert counted == len(deleted) == 100 * sum(range(scene.partitions))


@pytest.mark.row("the requests topic deleted, created again and filled while the aggregator is frozen")
@pytest.mark.short
async def test_a_topic_made_again_is_read_from_its_start(scene: Scene, figures: Figures) -> None:
    await scene.server()
    aggregator = await scene.aggregator(settings={"KAFKA__CLIENT__SESSION_TIMEOUT_S": "20"})
    await scene.load.send(2000)
    assert await scene.drained()
    scene.kept_id = await scene.requests_id()
    scene.kept_requests = [record async for record in read_topics(scene.kafka, scene.topics.requests)]
    async with scene.fault():
        aggregator.pause()
        await scene.delete(scene.topics.requests)
        await scene.create(scene.topics.requests)
        await scene.load.send(5000)
        await scene.load.flush()
        aggregator.resume()
    async with scene.under_load():
        await scene.answers(1500)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert verdict.sent > len(scene.kept_requests) + 5000 == 7000


def sometimes_to(topic: str) -> Maker:
    """Every third question is to be answered to another topic, or kept where that cannot be."""

    def make(number: int, request_id: str) -> Planned:
        planned = question(number, request_id)
        if number % 3:
            return planned
        sent = Sent(planned.sent.value, (PROTOBUF, ("kafka_replyTopic", topic.encode())))
        return Planned(sent, Intent(planned.intent.text, may_die=frozenset({"INTERNAL"})))

    return make


@pytest.mark.row("one of two reply topics deleted, and created again")
async def test_a_deleted_reply_topic_costs_only_its_own(scene: Scene, figures: Figures) -> None:
    other = f"{scene.topics.replies}-other"
    await scene.create(other)
    await scene.server()
    await scene.aggregator(settings={"KAFKA__ALLOWED_REPLY_TOPICS": f'["{other}"]'})
    await scene.load.send(300, sometimes_to(other))
    assert await scene.drained()
    scene.kept_replies = [record async for record in read_topics(scene.kafka, other)]
    assert len(scene.kept_replies) == 100
    async with scene.fault():
        await scene.delete(other)
        async with scene.under_load(200, sometimes_to(other)):
            await scene.answers(1500)
        assert await scene.drained()
        await scene.create(other)
    scene.further_replies = (other,)
    async with scene.under_load(200, sometimes_to(other)):
        await scene.answers(600)
        async with asyncio.timeout(60):
            while not [record async for record in read_topics(scene.kafka, other)]:  # noqa: ASYNC110 - a topic calls nobody
                await asyncio.sleep(1.0)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert verdict.dead_lettered > 300


@pytest.mark.row("the dead-letter topic deleted, and created again")
@pytest.mark.short
async def test_a_dead_letter_that_cannot_be_written_holds_its_offset(scene: Scene, figures: Figures) -> None:
    def corrupt(number: int, request_id: str) -> Planned:
        del number, request_id
        return Planned(Sent(b"\xff\xff"), Intent(codes=frozenset({"DATA_LOSS"}), dead=True))

    await scene.server()
    await scene.aggregator()
    async with scene.under_load(200):
        async with scene.fault():
            await scene.delete(scene.topics.dead_letters)
            await scene.load.send(1, corrupt, partition=1)
            await scene.load.flush()
            (held_at,) = [scene.load.acknowledged[key][1] for key, intent in scene.load.intents.items() if intent.dead]
            await scene.answers(1000)
            held = (scene.topics.requests, 1)
            async with asyncio.timeout(60):
                while (await committed(scene.kafka, scene.topics.requests))[held] < held_at:  # noqa: ASYNC110 - a group calls nobody
                    await asyncio.sleep(0.5)
            reached = await committed(scene.kafka, scene.topics.requests)
            await scene.create(scene.topics.dead_letters)
        await scene.answers(1000)
    verdict = figures.take(await scene.verdict())
    assert reached[held] == held_at
    assert min(reached[scene.topics.requests, number] for number in (0, 2, 3)) > 0
    assert verdict.problems == ()
    assert verdict.dead_lettered == 1


@pytest_asyncio.fixture
async def guarded(guarded_broker: tuple[KafkaBroker, str], tmp_path: Path) -> AsyncIterator[Scene]:
    """A scene whose aggregators may do what they must, and no more."""
    broker, address = guarded_broker
    user = {
        "KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA__SASL__USERNAME": "app",
        "KAFKA__SASL__PASSWORD": "secret",
    }
    scene = Scene(tmp_path, broker.bootstrap, beside=address, settings=user)
    await scene.open()
    cluster, topics = GuardedCluster(broker, address), scene.topics
    await cluster.grant(TOPIC, topics.requests, READ, DESCRIBE)
    await cluster.grant(GROUP, topics.requests, READ)
    for topic in (topics.replies, topics.dead_letters):
        await cluster.grant(TOPIC, topic, WRITE, DESCRIBE)
    yield scene
    await scene.close()


async def forbid(scene: Scene, name: str, kind: int = TOPIC, operation: int = WRITE, *, forbidden: bool) -> None:
    """Forbid writing to a topic, or something else, or no longer."""
    rule: Any = (kind, name, LITERAL, "User:app", "*", operation, DENY)
    async with connected_admin(scene.kafka) as admin:
        await admin._send_to_controller(  # noqa: SLF001 - there is no public way
            CreateAclsRequest(*rule) if forbidden else DeleteAclsRequest(*rule)
        )


@pytest.mark.row("authorisation revoked on one of two reply topics, and granted again")
async def test_a_forbidden_reply_topic_costs_only_its_own(guarded: Scene, figures: Figures) -> None:
    scene = guarded
    other = f"{scene.topics.replies}-other"
    await scene.create(other)
    scene.further_replies = (other,)
    cluster = GuardedCluster(KafkaBroker(scene.folder / "none"), scene.beside)
    cluster.bootstrap = scene.kafka
    await cluster.grant(TOPIC, other, WRITE, DESCRIBE)
    await scene.server()
    await scene.aggregator(settings={"KAFKA__ALLOWED_REPLY_TOPICS": f'["{other}"]'})
    async with scene.under_load(300, sometimes_to(other)):
        async with scene.fault():
            await forbid(scene, other, forbidden=True)
            await scene.answers(1000)
            await forbid(scene, other, forbidden=False)
        await scene.answers(2000)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert 0 < verdict.dead_lettered < verdict.sent / 3


@pytest.mark.row("authorisation of the consumer group revoked for 1.2 s, and granted again")
@pytest.mark.short
async def test_a_group_that_is_forbidden_for_a_moment_is_joined_anew(guarded: Scene, figures: Figures) -> None:
    scene = guarded
    await scene.server()
    aggregator = await scene.aggregator()
    async with scene.under_load():
        async with scene.fault():
            await forbid(scene, scene.topics.requests, GROUP, READ, forbidden=True)
            await asyncio.sleep(1.2)
            await forbid(scene, scene.topics.requests, GROUP, READ, forbidden=False)
        async with asyncio.timeout(30):
            while responds(aggregator.metrics_address, "/readyz"):  # noqa: ASYNC110 - it calls nobody
                await asyncio.sleep(0.05)
        await scene.answers(2000)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
