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

from loadtest.stack.part import responds
from tests.faults.row_stack import PATIENCE_S, RowStack, opened
from tests.faults.rows import Figures
from tests.faults.steady_load import Intent, Maker, Planned, question
from tests.faults.topic_logs import read_topics
from tests.integration.kafka.secure_broker import APP, APPS_PASSWORD, SecureKafka
from tests.integration.kafka.test_security import grant, secure_kafka
from tests.support.kafka_client import PROTOBUF, Sent, committed, connected_admin, delete_topic
from tests.support.scrape import metrics
from tests.support.until import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]

__all__ = ["secure_kafka"]

TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL = 3
READ, WRITE, DESCRIBE, IDEMPOTENT_WRITE = 3, 4, 8, 12
DENY = 2


@pytest.mark.row("partitions added to the requests")
async def test_new_partitions_are_read_from_their_start(stack: RowStack, figures: Figures) -> None:
    await stack.server()
    await stack.aggregator()
    async with stack.under_load():
        async with stack.fault():
            more = NewPartitions(2 * stack.partitions)
            async with connected_admin(stack.kafka) as admin:
                await admin.create_partitions({stack.topics.requests: more, stack.topics.dead_letters: more})

        async def all_are_committed() -> bool:
            return len(await committed(stack.kafka, stack.topics.requests)) == 2 * stack.partitions

        await until(all_are_committed, PATIENCE_S, 0.5)
        await stack.answers(1500)
    await stack.passes(figures)
    assert {partition for partition, _ in stack.load.acknowledged.values()} == set(range(2 * stack.partitions))


@pytest.mark.row("retention deletes unread records")
async def test_what_retention_took_is_counted(stack: RowStack, figures: Figures) -> None:
    await stack.server()
    first = await stack.aggregator()
    async with stack.under_load():
        assert await stack.stop(first) == [0]
        await stack.load.send(2000)
    async with stack.fault():
        await stack.load.flush()
        reached = await committed(stack.kafka, stack.topics.requests)
        stack.kept_requests = [
            record
            async for record in read_topics(stack.kafka, stack.topics.requests)
            if record.offset < reached[record.topic, record.partition]
        ]
        gone = {number: reached[stack.topics.requests, number] + 100 * number for number in range(stack.partitions)}
        async with connected_admin(stack.kafka) as admin:
            places = {TopicPartition(stack.topics.requests, number): RecordsToDelete(gone[number]) for number in gone}
            await admin.delete_records(places)
        second = await stack.aggregator()
    assert await stack.drained()
    counted = metrics(second.metrics_address).value("tokenbatch_consumer_lost_total", topic=stack.topics.requests)
    starts = {number: reached[stack.topics.requests, number] for number in gone}
    deleted = [key for key, (part, at) in stack.load.acknowledged.items() if starts[part] <= at < gone[part]]
    await stack.passes(figures, without=deleted, deleted=len(deleted), counted=counted)
    assert counted == len(deleted) == 100 * sum(range(stack.partitions))


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
async def test_a_deleted_reply_topic_costs_only_its_own(stack: RowStack, figures: Figures) -> None:
    other = f"{stack.topics.replies}-other"
    await stack.create(other)
    await stack.server()
    await stack.aggregator(settings={"KAFKA__ALLOWED_REPLY_TOPICS": f'["{other}"]'})
    await stack.load.send(300, sometimes_to(other))
    assert await stack.drained()
    stack.kept_replies = [record async for record in read_topics(stack.kafka, other)]
    assert len(stack.kept_replies) == 100
    async with stack.fault():
        await delete_topic(stack.kafka, other)
        async with stack.under_load(200, sometimes_to(other)):
            await stack.answers(1500)
        assert await stack.drained()
        await stack.create(other)
    stack.further_replies = (other,)
    async with stack.under_load(200, sometimes_to(other)):
        await stack.answers(600)

        async def replies() -> list[Any]:
            return [record async for record in read_topics(stack.kafka, other)]

        await until(replies, PATIENCE_S, 1.0)
    verdict = await stack.passes(figures)
    assert verdict.dead_lettered > 300


@pytest.mark.row("the dead-letter topic deleted, and created again")
@pytest.mark.short
async def test_a_dead_letter_that_cannot_be_written_holds_its_offset(stack: RowStack, figures: Figures) -> None:
    def corrupt(number: int, request_id: str) -> Planned:
        del number, request_id
        return Planned(Sent(b"\xff\xff"), Intent(codes=frozenset({"DATA_LOSS"}), dead=True))

    await stack.server()
    await stack.aggregator()
    async with stack.fault_under_load(100, then=300):
        await delete_topic(stack.kafka, stack.topics.dead_letters)
        await stack.load.send(1, corrupt, partition=1)
        await stack.load.flush()
        (held_at,) = [stack.load.acknowledged[key][1] for key, intent in stack.load.intents.items() if intent.dead]
        await stack.answers(300)
        held = (stack.topics.requests, 1)

        async def all_before_it_are_committed() -> bool:
            return (await committed(stack.kafka, stack.topics.requests))[held] >= held_at

        await until(all_before_it_are_committed, PATIENCE_S, 0.5)
        reached = await committed(stack.kafka, stack.topics.requests)
        await stack.create(stack.topics.dead_letters)
    verdict = figures.take(await stack.verdict())
    assert reached[held] == held_at
    assert min(reached[stack.topics.requests, number] for number in (0, 2, 3)) > 0
    assert verdict.problems == ()
    assert verdict.dead_lettered == 1


@pytest_asyncio.fixture
async def guarded(secure_kafka: SecureKafka, tmp_path: Path) -> AsyncIterator[RowStack]:
    """A stack whose aggregators have the rights that they need, and no others."""
    kafka = secure_kafka.broker.bootstrap
    app = {
        "KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA__SSL__CA_FILE": str(secure_kafka.folder / "ca.crt"),
        "KAFKA__SASL__USERNAME": APP,
        "KAFKA__SASL__PASSWORD": APPS_PASSWORD,
    }
    async with opened(RowStack(tmp_path, kafka, beside=secure_kafka.sasl_ssl, settings=app)) as stack:
        topics = stack.topics
        await grant(kafka, TOPIC, topics.requests, READ, DESCRIBE)
        await grant(kafka, GROUP, topics.requests, READ)
        for topic in (topics.replies, topics.dead_letters):
            await grant(kafka, TOPIC, topic, WRITE, DESCRIBE)
        yield stack


async def forbid(stack: RowStack, name: str, kind: int = TOPIC, operation: int = WRITE, *, forbidden: bool) -> None:
    """Forbid writing to a topic, or something else, or no longer."""
    rule: Any = (kind, name, LITERAL, f"User:{APP}", "*", operation, DENY)
    async with connected_admin(stack.kafka) as admin:
        await admin._send_to_controller(  # noqa: SLF001 - there is no public way
            CreateAclsRequest(*rule) if forbidden else DeleteAclsRequest(*rule)
        )


@pytest.mark.row("authorisation revoked on one of two reply topics, and granted again")
async def test_a_forbidden_reply_topic_costs_only_its_own(guarded: RowStack, figures: Figures) -> None:
    stack = guarded
    other = f"{stack.topics.replies}-other"
    await stack.create(other)
    stack.further_replies = (other,)
    await grant(stack.kafka, TOPIC, other, WRITE, DESCRIBE)
    await stack.server()
    await stack.aggregator(settings={"KAFKA__ALLOWED_REPLY_TOPICS": f'["{other}"]'})
    async with stack.fault_under_load(300, sometimes_to(other), then=2000):
        await forbid(stack, other, forbidden=True)
        await stack.answers(1000)
        await forbid(stack, other, forbidden=False)
    verdict = await stack.passes(figures)
    assert 0 < verdict.dead_lettered < verdict.sent / 3


@pytest.mark.row("authorisation of the consumer group revoked for 1.2 s, and granted again")
async def test_a_group_that_is_forbidden_for_a_moment_is_joined_anew(guarded: RowStack, figures: Figures) -> None:
    stack = guarded
    await stack.server()
    aggregator = await stack.aggregator()
    async with stack.under_load():
        async with stack.fault():
            await forbid(stack, stack.topics.requests, GROUP, READ, forbidden=True)
            await asyncio.sleep(1.2)
            await forbid(stack, stack.topics.requests, GROUP, READ, forbidden=False)
        await until(lambda: not responds(aggregator.metrics_address, "/readyz"), PATIENCE_S, 0.05)
        await stack.answers(2000)
    await stack.passes(figures)
