"""A cluster that asks who one is: clear words at the start, and in operation only what is forbidden fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from aiokafka import errors as kafka_errors
from aiokafka.protocol.admin import CreateAclsRequest

from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.connection import check, prepare_topics
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.producer import KafkaProducer
from k8s.process.errors import StartError
from k8s.process.metrics_buffer import MetricsBuffer
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.ports import free_ports
from tests.support.kafka_clusters import RealCluster, complete, produce, reading, records_of, send_all, until_committed

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC, GROUP = 2, 3
LITERAL = 3
READ, WRITE, DESCRIBE = 3, 4, 8
ALLOW = 3

USER = {"username": "app", "password": "secret"}


class GuardedCluster(RealCluster):
    """A broker whose plain listener is for administrators, and another for everybody else."""

    def __init__(self, broker: KafkaBroker, guarded: str) -> None:
        super().__init__(broker.bootstrap)
        self.guarded = guarded

    def as_user(self, *topics: str, sasl: Mapping[str, Any] = USER, **changes: Any) -> KafkaSettings:
        guarded = {"bootstrap_servers": self.guarded, "security_protocol": "SASL_PLAINTEXT", "sasl": sasl}
        return self.settings(*topics, **guarded, **changes)

    async def grant(self, kind: int, name: str, *operations: int) -> None:
        async with self.admin() as admin:
            for operation in operations:
                request = CreateAclsRequest(kind, name, LITERAL, "User:app", "*", operation, ALLOW)
                response = await admin._send_to_controller(request)  # noqa: SLF001 - there is no public way
                assert response.creation_responses[0][0] == 0


@pytest.fixture(scope="module")
def guarded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, str]]:
    """One broker with accounts and access control lists."""
    (guarded_port,) = free_ports(1)
    broker = KafkaBroker(
        tmp_path_factory.mktemp("guarded-kafka"),
        format_options=("--add-scram", "SCRAM-SHA-256=[name=app,password=secret]"),
    )
    seat = broker.seat
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required user_app=secret;"
    broker.settings |= {
        "listeners": f"PLAINTEXT://:{seat.port},GUARDED://:{guarded_port},CONTROLLER://localhost:{seat.controller_port}",
        "advertised.listeners": f"PLAINTEXT://localhost:{seat.port},GUARDED://localhost:{guarded_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,GUARDED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.guarded.plain.sasl.jaas.config": login,
        "listener.name.guarded.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with broker:
        yield broker, f"localhost:{guarded_port}"


@pytest.fixture
def guarded(guarded_broker: tuple[KafkaBroker, str]) -> GuardedCluster:
    """A group and topics of its own."""
    return GuardedCluster(*guarded_broker)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_what_is_missing_or_not_to_be_seen_is_named(guarded: GuardedCluster, mechanism: str) -> None:
    topic = await guarded.create_topic()
    with pytest.raises(StartError, match=f"{topic}.* missing, or not visible to this client"):
        await prepare_topics(guarded.as_user(topic, sasl={**USER, "mechanism": mechanism}), 30)
    with pytest.raises(StartError, match="not there"):
        await check(guarded.as_user(topic, sasl={**USER, "mechanism": mechanism}), 30)
    with pytest.raises(StartError, match="not authorised to create topic"):
        await prepare_topics(guarded.as_user(topic, sasl={**USER, "mechanism": mechanism}, create_topics=True), 30)


async def test_only_records_for_the_forbidden_topic_are_refused(guarded: GuardedCluster) -> None:
    allowed, read_only, hidden = [await guarded.create_topic() for _ in range(3)]
    await guarded.grant(TOPIC, allowed, WRITE, DESCRIBE)
    await guarded.grant(TOPIC, read_only, READ, DESCRIBE)
    producer = KafkaProducer(guarded.as_user())
    await producer.start()
    for _ in range(3):
        words = await send_all(producer, [*records_of(allowed, 5), *records_of(read_only, 2), *records_of(hidden, 2)])
        assert words[:5] == [None] * 5
        assert [type(word) for word in words[5:]] == [kafka_errors.TopicAuthorizationFailedError] * 4
    await producer.close(2)
    assert len(await guarded.read(allowed)) == 15


async def test_a_group_that_is_forbidden_is_waited_for(guarded: GuardedCluster) -> None:
    topic = await guarded.create_topic()
    await produce(guarded, records_of(topic, 3))
    await guarded.grant(TOPIC, topic, READ, DESCRIBE)
    consumer = KafkaConsumer(guarded.as_user(topic), lambda _: None, Metrics(MetricsBuffer()))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.fetch(), 3)
        joined = consumer.healthy
        await guarded.grant(GROUP, f"group-{guarded.name}", READ)
        assert [in_flight.offset for in_flight in await asyncio.wait_for(consumer.fetch(), 60)] == [0, 1, 2]
        assert (joined, consumer.healthy) == (False, True)
        await consumer.close(3)


async def test_a_query_topic_that_is_forbidden_holds_up_no_other(guarded: GuardedCluster) -> None:
    forbidden, allowed = await guarded.create_topic(), await guarded.create_topic()
    await guarded.grant(TOPIC, forbidden, DESCRIBE)
    await guarded.grant(TOPIC, allowed, READ, DESCRIBE)
    await guarded.grant(GROUP, f"group-{guarded.name}", READ)
    await produce(guarded, [*records_of(forbidden, 5), *records_of(allowed, 5)])
    async with reading(guarded, guarded.as_user(forbidden, allowed)) as intake:
        complete(await intake.take(5))
        for start in (5, 10, 15):
            await produce(guarded, records_of(allowed, 5, start=start))
            complete(await intake.take(5, timeout_s=8.0))
        assert {in_flight.topic for in_flight in intake.in_flight_records} == {allowed}
        await until_committed(guarded, allowed, {0: 20})
