"""At start the topics are there, or made, or it is said what is missing; `check` tells of limits that fit badly too."""

from __future__ import annotations

import pytest

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.connection import prepare_topics
from aggregator.wings.check.kafka import check_kafka
from k8s.pod.errors import StartError
from tests.support.kafka_clusters import RealCluster

pytestmark = pytest.mark.kafka


def settings_of(cluster: RealCluster, topic: str, **changes: object) -> KafkaSettings:
    return cluster.settings(topic, reply_topic=f"{topic}.replies", **changes)


async def test_missing_topics_are_created_only_where_that_is_allowed(shared: RealCluster) -> None:
    requests = await shared.create_topic(partitions=6)
    strict = settings_of(shared, requests)
    with pytest.raises(StartError, match=rf"{requests}\.replies, {requests}-dlt are missing"):
        await prepare_topics(strict, 10)
    with pytest.raises(StartError, match="are missing"):
        await check_kafka(strict, 10)
    creating = settings_of(shared, requests, create_topics=True, partitions=2)
    assert any("will be created" in warning for warning in await check_kafka(creating, 10))
    await prepare_topics(creating, 10)
    await prepare_topics(strict, 10)
    async with shared.admin() as admin:
        counts = {each["topic"]: len(each["partitions"]) for each in await admin.describe_topics()}
    assert (counts[requests], counts[f"{requests}.replies"], counts[f"{requests}-dlt"]) == (6, 2, 6)


async def test_a_topic_that_the_broker_refuses_is_named(shared: RealCluster) -> None:
    settings = shared.settings("no topic!", create_topics=True)
    with pytest.raises(StartError, match="topic no topic! cannot be created: Topic name is invalid"):
        await prepare_topics(settings, 10)


async def test_limits_that_fit_badly_are_told(shared: RealCluster) -> None:
    requests = await shared.create_topic(partitions=2, max_message_bytes="2000000")
    await shared.create_named_topic(f"{requests}-dlt", max_message_bytes="2000001")
    await shared.create_named_topic(f"{requests}.replies", max_message_bytes="100000")
    warnings = "\n".join(await check_kafka(settings_of(shared, requests), 10))
    assert f"max.message.bytes of {requests}-dlt is 2000001" in warnings
    assert f"{requests}-dlt has fewer partitions" in warnings


async def test_limits_that_fit_are_not_mentioned(shared: RealCluster) -> None:
    requests = await shared.create_topic()
    await shared.create_named_topic(f"{requests}-dlt", max_message_bytes="2000000")
    await shared.create_named_topic(f"{requests}.replies")
    assert list(await check_kafka(settings_of(shared, requests), 10)) == []


@pytest.mark.parametrize("name", ["-dlt", ".deltas"])
async def test_a_compacted_topic_of_dead_letters_or_deltas_is_refused(shared: RealCluster, name: str) -> None:
    requests = await shared.create_topic()
    for suffix in ("-dlt", ".deltas", ".replies"):
        policy = "compact,delete" if suffix == name else "delete"
        await shared.create_named_topic(requests + suffix, cleanup_policy=policy, max_message_bytes="2000000")
    replies, deltas = f"{requests}.replies", f"{requests}.deltas"
    topics = [{"name": requests, "task": "generate", "reply_topic": replies, "delta_topic": deltas}]
    settings = settings_of(shared, requests, topics=topics)
    for look in (check_kafka, prepare_topics):
        with pytest.raises(StartError, match=f"{requests}{name} is compacted.*set cleanup.policy to delete"):
            await look(settings, 10)


async def test_a_compacted_reply_topic_is_mentioned_and_used(shared: RealCluster) -> None:
    requests = await shared.create_topic()
    await shared.create_named_topic(f"{requests}-dlt", max_message_bytes="2000000")
    await shared.create_named_topic(f"{requests}.replies", cleanup_policy="compact")
    settings = settings_of(shared, requests)
    assert any(f"{requests}.replies is compacted" in warning for warning in await check_kafka(settings, 10))
    await prepare_topics(settings, 10)


async def test_a_broker_that_speaks_no_tls_is_named(shared: RealCluster) -> None:
    with pytest.raises(StartError, match=f"{shared.bootstrap}.*security_protocol"):
        await check_kafka(shared.settings(security_protocol="SSL"), 1)
