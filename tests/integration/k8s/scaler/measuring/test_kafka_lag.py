"""The scaler's view of a real Kafka: log ends, beginnings, commits, and what an outage looks like."""

from __future__ import annotations

import secrets

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from k8s.scaler.measuring.kafka_lag import KafkaLag
from loadtest.stack.kafka import KafkaBroker


def settings(bootstrap: str) -> KafkaSettings:
    name = secrets.token_hex(4)
    return KafkaSettings(
        bootstrap_servers=bootstrap, topics=(TopicSettings(name=f"requests-{name}"),), group_id=f"group-{name}"
    )


async def make_topic(kafka: KafkaSettings, partitions: int) -> str:
    (topic,) = kafka.topics
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic.name, partitions, 1)])
    finally:
        await admin.close()
    return topic.name


async def produce(kafka: KafkaSettings, topic: str, partition: int, count: int) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    await producer.start()
    try:
        for _ in range(count):
            await producer.send_and_wait(topic, b"x", partition=partition)
    finally:
        await producer.stop()


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
    of = settings(kafka.bootstrap)
    topic = await make_topic(of, 2)
    await produce(of, topic, 0, 5)
    await commit(of, topic, 0, 3)
    lag = KafkaLag(of)
    try:
        ends = await lag.read(1.0)
        assert ends.ends == {(topic, 0): 5, (topic, 1): 0}
        assert ends.starts == {(topic, 0): 0, (topic, 1): 0}
        assert ends.committed == {(topic, 0): 3}
        assert ends.unread({}, topic) == 2
        assert ends.unread({(topic, 0): 5}, topic) == 0
        await produce(of, topic, 1, 4)
        assert (await lag.read(2.0)).records(topic) == 9
    finally:
        await lag.close()


@pytest.mark.kafka
async def test_a_topic_that_is_missing_is_an_error_until_it_is_made(kafka: KafkaBroker) -> None:
    of = settings(kafka.bootstrap)
    lag = KafkaLag(of)
    try:
        with pytest.raises(UnknownTopicOrPartitionError):
            await lag.read(1.0)
        topic = await make_topic(of, 1)
        await produce(of, topic, 0, 2)
        assert (await lag.read(2.0)).ends == {(topic, 0): 2}
    finally:
        await lag.close()


async def test_without_a_broker_it_says_so_and_can_be_asked_again() -> None:
    lag = KafkaLag(settings("127.0.0.1:1"))
    for _ in range(2):
        with pytest.raises((KafkaError, TimeoutError, OSError)):
            await lag.read(1.0)
    await lag.close()
