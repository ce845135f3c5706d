"""A cluster that asks who one is: settings pass through, secrets stay so, and only what is forbidden fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import errors as kafka_errors
from aiokafka.protocol.admin import CreateAclsRequest, DescribeAclsRequest

from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.aiokafka_internals import ask
from aggregator.sources.kafka.connection import prepare_topics
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.producer import KafkaProducer
from aggregator.wings.check.kafka import check_kafka
from k8s.pod.errors import StartError
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.integration.kafka.secure_broker import APP, APPS_PASSWORD, PASSWORD, USER, SecureKafka, make
from tests.support.kafka_client import connected_admin
from tests.support.kafka_clusters import RealCluster, complete, produce, reading, records_of, send_all, until_committed
from tests.support.until import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC, GROUP = 2, 3
LITERAL = 3
READ, WRITE, DESCRIBE = 3, 4, 8
ALLOW = 3
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "client certificate")


class GuardedCluster(RealCluster):
    """Made by the plain listener, which is for administrators, and used by the others."""

    def __init__(self, kafka: SecureKafka) -> None:
        super().__init__(kafka.broker.bootstrap)
        self.kafka = kafka

    def as_app(self, *topics: str, mechanism: str = "PLAIN", **changes: Any) -> KafkaSettings:
        sasl = {"mechanism": mechanism, "username": APP, "password": APPS_PASSWORD}
        return self._secured(*topics, sasl=sasl, **changes)

    def as_user(self, *topics: str, mechanism: str, **changed: str) -> KafkaSettings:
        """Who may do everything; `changed` are names of files in its folder, or a password."""
        folder = self.kafka.folder
        ssl = {"ca_file": folder / changed.get("ca_file", "ca.crt")}
        if mechanism == "client certificate":
            ssl |= {f"{kind}_file": folder / f"{changed.get('client', 'client')}.{kind[:3]}" for kind in ("crt", "key")}
            ssl["cert_file"] = ssl.pop("crt_file")
            return self.settings(*topics, bootstrap_servers=self.kafka.ssl, security_protocol="SSL", ssl=ssl)
        sasl: dict[str, Any] = {"mechanism": mechanism, "username": USER}
        match mechanism:
            case "OAUTHBEARER":
                sasl["token_file"] = folder / "token"
            case "SCRAM-SHA-512":  # by a file, as Kubernetes mounts secrets
                sasl["password_file"] = folder / "password"
            case _:
                sasl["password"] = changed.get("password", PASSWORD)
        return self._secured(*topics, ssl=ssl, sasl=sasl)

    def _secured(self, *topics: str, **changes: Any) -> KafkaSettings:
        ssl = {"ca_file": self.kafka.folder / "ca.crt"}
        guarded = {"bootstrap_servers": self.kafka.sasl_ssl, "security_protocol": "SASL_SSL", "ssl": ssl}
        return self.settings(*topics, **{**guarded, **changes})

    async def grant(self, kind: int, name: str, *operations: int) -> None:
        await grant(self.bootstrap, kind, name, *operations)


async def grant(bootstrap: str, kind: int, name: str, *operations: int) -> None:
    """Allow the app what it was not allowed, and wait until the broker follows: it learns of it from the controller."""
    async with connected_admin(bootstrap) as admin:
        for operation in operations:
            request = CreateAclsRequest(kind, name, LITERAL, f"User:{APP}", "*", operation, ALLOW)
            response = await admin._send_to_controller(request)  # noqa: SLF001 - there is no public way
            assert response.creation_responses[0][0] == 0
            filtered = DescribeAclsRequest(kind, name, LITERAL, f"User:{APP}", "*", operation, ALLOW)

            async def followed(filtered: DescribeAclsRequest = filtered) -> bool:
                return bool((await ask(admin, filtered)).resources)

            await until(followed)


@pytest.fixture(scope="module")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """One broker for all of this file."""
    secured = make(tmp_path_factory.mktemp("secure-kafka"))
    (secured.folder / "password").write_text(PASSWORD + "\n")
    with secured.broker:
        yield secured


@pytest.fixture
def guarded(secure_kafka: SecureKafka) -> GuardedCluster:
    """A group and topics of its own."""
    (secure_kafka.folder / "token").write_text(secure_kafka.token() + "\n")
    return GuardedCluster(secure_kafka)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_records_pass_and_no_secret_is_logged(
    guarded: GuardedCluster, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = await guarded.create_topic()
    settings = guarded.as_user(topic, mechanism=mechanism)
    producer = KafkaProducer(settings)
    await producer.start()
    async with reading(guarded, settings) as intake:
        assert await send_all(producer, records_of(topic, 5)) == [None] * 5
        complete(await intake.take(5))
        await until_committed(guarded, topic, {0: 5})
    await producer.close(2)
    assert PASSWORD not in caplog.text
    assert guarded.kafka.token()[:20] not in caplog.text  # the header, which all of its tokens share


@pytest.mark.parametrize(
    ("mechanism", "wrong", "says"),
    [
        ("PLAIN", {"password": "wrong-secret"}, "credentials"),
        ("PLAIN", {"password": ""}, "password"),
        ("PLAIN", {"ca_file": "stranger.crt"}, "TLS"),
        ("client certificate", {"client": "stranger"}, "kafka"),
        ("PLAIN", {"ca_file": "nowhere.crt"}, "kafka.ssl.ca_file: .* cannot be read"),
    ],
)
async def test_what_is_wrong_is_said_without_the_secret(
    guarded: GuardedCluster, mechanism: str, wrong: dict[str, str], says: str
) -> None:
    with pytest.raises(StartError, match=says) as refused:
        await check_kafka(guarded.as_user(mechanism=mechanism, **wrong), 4)
    assert "secret" not in str(refused.value)


async def test_an_expired_token_is_refused_and_a_fresh_one_in_the_file_is_taken(guarded: GuardedCluster) -> None:
    settings = guarded.as_user(await guarded.create_topic(), mechanism="OAUTHBEARER")
    settings = settings.model_copy(update={"create_topics": True})
    token = guarded.kafka.folder / "token"
    token.write_text(guarded.kafka.token(seconds=-120))
    with pytest.raises(StartError, match=r"kafka: localhost:.*token_file"):
        await check_kafka(settings, 4)
    token.write_text(guarded.kafka.token())
    assert "will be created" in str(await check_kafka(settings, 30))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_what_is_missing_or_not_to_be_seen_is_named(guarded: GuardedCluster, mechanism: str) -> None:
    topic = await guarded.create_topic()
    with pytest.raises(StartError, match=f"{topic}.* missing, or not visible to this client"):
        await prepare_topics(guarded.as_app(topic, mechanism=mechanism), 30)
    with pytest.raises(StartError, match=f"{topic}.* missing"):
        await check_kafka(guarded.as_app(topic, mechanism=mechanism), 30)
    with pytest.raises(StartError, match="not authorised to create topic"):
        await prepare_topics(guarded.as_app(topic, mechanism=mechanism, create_topics=True), 30)


async def test_rights_that_are_missing_are_named_before_a_start(guarded: GuardedCluster) -> None:
    topic = await guarded.create_topic()
    replies, dead = f"{topic}.replies", f"{topic}-dlt"
    await prepare_topics(guarded.settings(topic, reply_topic=replies, create_topics=True), 30)
    for name in (topic, replies, dead):
        await guarded.grant(TOPIC, name, DESCRIBE)
    app, group = guarded.as_app(topic, reply_topic=replies), f"group-{guarded.name}"
    with pytest.raises(StartError) as caught:
        await check_kafka(app, 30)
    rights = [f"Read on topic {topic}", f"Write on topic {replies}", f"Write on topic {dead}", f"Read on group {group}"]
    assert str(caught.value) == f"kafka: this client lacks {', '.join(rights)}: grant it"
    await guarded.grant(TOPIC, topic, READ)
    await guarded.grant(TOPIC, replies, WRITE)
    await guarded.grant(TOPIC, dead, WRITE)
    await guarded.grant(GROUP, group, READ)
    await check_kafka(app, 30)


async def test_only_records_for_the_forbidden_topic_are_refused(guarded: GuardedCluster) -> None:
    allowed, read_only, hidden = [await guarded.create_topic() for _ in range(3)]
    await guarded.grant(TOPIC, allowed, WRITE, DESCRIBE)
    await guarded.grant(TOPIC, read_only, READ, DESCRIBE)
    producer = KafkaProducer(guarded.as_app())
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
    consumer = KafkaConsumer(guarded.as_app(topic), lambda _: None, Metrics(MetricsBuffer()))
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
    async with reading(guarded, guarded.as_app(forbidden, allowed)) as intake:
        complete(await intake.take(5))
        for start in (5, 10, 15):
            await produce(guarded, records_of(allowed, 5, start=start))
            complete(await intake.take(5, timeout_s=8.0))
        assert {in_flight.topic for in_flight in intake.in_flight_records} == {allowed}
        await until_committed(guarded, allowed, {0: 20})
