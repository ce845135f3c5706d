"""The scaler's view of a real Kafka: log ends, beginnings, commits, and what an outage looks like."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from aggregator.settings.aggregator import KafkaSettings
from aggregator.wings.scaler.measuring.kafka_lag import KafkaLag
from loadtest.stack.kafka import KafkaBroker
from tests.support.kafka_clusters import RealCluster, produce, records_of


async def commit(kafka: KafkaSettings, topic: str, partition: int, offset: int) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=kafka.group_id, enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, partition)])
        await consumer.commit({TopicPartition(topic, partition): offset})
    finally:
        await consumer.stop()


@pytest.mark.kafka
async def test_ends_beginnings_and_commits_are_read(kafka: KafkaBroker) -> None:
    cluster = RealCluster(kafka.bootstrap)
    topic = await cluster.create_topic(partitions=2)
    of = cluster.settings(topic)
    await produce(cluster, records_of(topic, 5, partition=0))
    await commit(of, topic, 0, 3)
    lag = KafkaLag(of)
    try:
        ends = await lag.read(1.0)
        assert ends.ends == {(topic, 0): 5, (topic, 1): 0}
        assert ends.starts == {(topic, 0): 0, (topic, 1): 0}
        assert ends.committed == {(topic, 0): 3}
        assert ends.unread({}, topic) == 2
        assert ends.unread({(topic, 0): 5}, topic) == 0
        await produce(cluster, records_of(topic, 4, partition=1))
        assert (await lag.read(2.0)).records(topic) == 9
    finally:
        await lag.close()


@pytest.mark.kafka
async def test_a_topic_that_is_missing_is_an_error_until_it_is_made(kafka: KafkaBroker) -> None:
    cluster = RealCluster(kafka.bootstrap)
    lag = KafkaLag(cluster.settings(topic := f"{cluster.name}-later"))
    try:
        with pytest.raises(UnknownTopicOrPartitionError):
            await lag.read(1.0)
        await produce(cluster, records_of(await cluster.create_named_topic(topic), 2))
        assert (await lag.read(2.0)).ends == {(topic, 0): 2}
    finally:
        await lag.close()


async def test_without_a_broker_it_says_so_and_can_be_asked_again() -> None:
    lag = KafkaLag(RealCluster("127.0.0.1:1").settings())
    for _ in range(2):
        with pytest.raises((KafkaError, TimeoutError, OSError)):
            await lag.read(1.0)
    await lag.close()
