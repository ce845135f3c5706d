"""The embedded Apache Kafka: it keeps its data, says why it cannot start, and never outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from loadtest.stack.errors import StackError
from loadtest.stack.kafka import KafkaBroker, KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def create_topic(bootstrap: str, name: str, replication: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 2, replication)])
    finally:
        await admin.close()


async def write(bootstrap: str, topic: str, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        await producer.send_and_wait(topic, value, partition=0)


async def read(bootstrap: str, topic: str) -> bytes:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        value = (await consumer.getone()).value
        assert value is not None
        return bytes(value)


async def test_acknowledged_data_survives_a_crash(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka")
    try:
        broker.start()
        await create_topic(broker.bootstrap, "kept")
        await write(broker.bootstrap, "kept", b"value")
        broker.kill()
        broker.start()
        assert await read(broker.bootstrap, "kept") == b"value"
    finally:
        broker.stop()


async def test_three_brokers_replicate_and_go_on_without_one(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path, brokers=3) as cluster:
        await create_topic(cluster.bootstrap, "replicated", replication=3)
        cluster.brokers[0].kill()
        survivors = ",".join(broker.bootstrap for broker in cluster.brokers[1:])
        await write(survivors, "replicated", b"value")
        assert await read(survivors, "replicated") == b"value"


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka", settings={"log.retention.hours": "many"})
    with pytest.raises(StackError, match=r"Invalid value many for configuration log\.retention\.hours"):
        broker.start()


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from loadtest.stack.kafka import KafkaBroker;"
        f"broker = KafkaBroker(Path({str(tmp_path / 'kafka')!r})); broker.start(); print(broker.pid, flush=True);"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        kafka = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while kafka.is_running() and kafka.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not kafka.is_running() or kafka.status() == psutil.STATUS_ZOMBIE
