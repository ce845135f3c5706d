"""A process stays within the memory that docs/operate.md states as a formula, whatever its topics bring."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from loadtest.stack.kafka import KafkaBroker
from protos.embedding.v1 import embedding_pb2 as pb
from tests.faults.memory_watch import MemoryWatch
from tests.support.kafka_client import PROTOBUF, Sent, Topics, committed, make_topics, open_kafka_client, query
from tests.support.processes import aggregators, synthetic
from tests.support.until import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

BASE_MIB, PART_OF_COPIES, BATCH_MIB, STREAMS_MIB, HELD_TOKENS_MIB = 300, 1.25, 128, 192, 11
LEDGER_MIB = 64
TEXT = ("a good question " * 60_000)[:900_000]
PARTITIONS = 2


def large_text(number: int) -> Sent:
    return Sent(query(TEXT, f"text-{number}", truncate=pb.TRUNCATE_END).value, (PROTOBUF,))


def short_text(number: int) -> Sent:
    return Sent(query(f"text {number}", f"short-{number}").value, (PROTOBUF,))


def many_texts(number: int) -> Sent:
    """A record of 5 kB whose reply takes 3.3 MB."""
    texts = [pb.Input(text=f"{number} {each}") for each in range(200)]
    return Sent(pb.EmbedRequest(inputs=texts).SerializeToString(), (PROTOBUF,))


def large_headers(number: int) -> Sent:
    headers = [("x" * 100, b"y" * 4000)] * 100
    return Sent(query(f"text {number}", f"headers-{number}").value, (PROTOBUF, *headers))


@dataclass(frozen=True, slots=True)
class Backlog:
    """`count` records of a topic."""

    record: Callable[[int], Sent]
    count: int
    compression: str | None = None


BACKLOGS = {
    "memory.texts": Backlog(large_text, 200),
    "memory.compressed": Backlog(large_text, 200, "gzip"),
    "memory.short": Backlog(short_text, 10_000),
    "memory.many": Backlog(many_texts, 60),
    "memory.headers": Backlog(large_headers, 200),
}
"""With what is made of them and their replies they are more than a gigabyte."""
REPLIES = "memory.replies"
MOST_MIB = (
    BASE_MIB + PART_OF_COPIES * LEDGER_MIB + BATCH_MIB + STREAMS_MIB + HELD_TOKENS_MIB + PARTITIONS * len(BACKLOGS)
)


async def produce(kafka: KafkaBroker, topic: str, backlog: Backlog) -> None:
    producer: Any = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap, max_request_size=2**24, compression_type=backlog.compression
    )
    async with producer:
        for number in range(backlog.count):
            sent = backlog.record(number)
            await producer.send(topic, value=sent.value, headers=list(sent.headers), partition=number % PARTITIONS)
        await producer.flush()


async def test_memory_stays_within_the_ledger_and_what_a_process_takes(kafka: KafkaBroker, tmp_path: Path) -> None:
    """One process reads all of it at once: a topic at its share pauses while the others go on."""
    count = sum(each.count for each in BACKLOGS.values())
    size = {"max.message.bytes": "20000000"}
    await make_topics(kafka.bootstrap, *BACKLOGS, REPLIES, partitions=PARTITIONS, configs=size)
    for topic, backlog in BACKLOGS.items():
        await produce(kafka, topic, backlog)
    settings = {
        "LIMITS__MEMORY_BYTES": str(LEDGER_MIB << 20),
        "GRPC__BIND": "127.0.0.1:0",
        "HTTP__BIND": "",
        "KAFKA__TOPICS": json.dumps([{"name": topic} for topic in BACKLOGS]),
    }
    topics = Topics(next(iter(BACKLOGS)), REPLIES)
    watch = MemoryWatch()
    try:
        with (
            synthetic(tmp_path / "engine", SYNTHETIC__DIMENSIONS="4096") as server,
            aggregators(kafka, tmp_path, "memory") as start,
        ):
            running = await asyncio.to_thread(start, server, topics=topics, settings=settings)
            watch.add(running.process.pid)

            async def all_committed() -> bool:
                return sum((await committed(kafka.bootstrap, running.group)).values()) == count

            await until(all_committed, 400.0, every_s=0.5)
            async with open_kafka_client(kafka.bootstrap, topics) as client:
                assert await client.written_replies() == count
    finally:
        watch.stop()
    assert 100 < watch.peak_mib < MOST_MIB
