"""A process stays within the memory that docs/operate.md states as a formula, whatever its topics bring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from loadtest.stack.kafka import KafkaBroker
from protos.embedding.v1 import embedding_pb2 as pb
from tests.faults.memory_watch import MemoryWatch
from tests.support.kafka_client import PROTOBUF, Sent, Topics, make_topics, open_kafka_client, query
from tests.support.processes import aggregators, synthetic

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

BASE_MIB, PART_OF_COPIES, BATCH_MIB = 300, 1.25, 128
LEDGER_MIB = 64
TEXT = ("a good question " * 60_000)[:900_000]
PARTITIONS = 2


def large_text(number: int) -> Sent:
    return Sent(query(TEXT, f"text-{number}", truncate=pb.TRUNCATE_END).value, (PROTOBUF,))


def short_text(number: int) -> Sent:
    return Sent(query(f"text {number}", f"short-{number}").value, (PROTOBUF,))


def many_texts(number: int) -> Sent:
    """A record of 5 kB whose reply takes 8 MB."""
    texts = [pb.Input(text=f"{number} {each}") for each in range(200)]
    return Sent(pb.EmbedRequest(inputs=texts).SerializeToString(), (PROTOBUF,))


def large_headers(number: int) -> Sent:
    headers = [("x" * 100, b"y" * 4000)] * 100
    return Sent(query(f"text {number}", f"headers-{number}").value, (PROTOBUF, *headers))


CASES: dict[str, tuple[Callable[[int], Sent], int, str | None]] = {
    "texts of 0.9 MB": (large_text, 200, None),
    "compressed texts of 0.9 MB": (large_text, 400, "gzip"),
    "short texts": (short_text, 20_000, None),
    "many texts a record": (many_texts, 200, None),
    "headers of 0.4 MB": (large_headers, 400, None),
}
"""A record, how many of them, and how they are compressed. Of the first and the third a gigabyte would be held."""


@pytest.mark.parametrize(("record", "count", "compression"), CASES.values(), ids=CASES)
async def test_memory_stays_within_the_ledger_and_what_a_process_takes(
    kafka: KafkaBroker, tmp_path: Path, record: Callable[[int], Sent], count: int, compression: str | None
) -> None:
    name = f"memory-{list(CASES.values()).index((record, count, compression))}"
    topics = Topics(f"{name}.requests", f"{name}.replies")
    size = {"max.message.bytes": "20000000"}
    await make_topics(
        kafka.bootstrap, topics.requests, topics.replies, topics.dead_letters, partitions=PARTITIONS, configs=size
    )
    producer: Any = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap, max_request_size=2**24, compression_type=compression
    )
    async with producer:
        for number in range(count):
            sent = record(number)
            await producer.send(
                topics.requests, value=sent.value, headers=list(sent.headers), partition=number % PARTITIONS
            )
        await producer.flush()
    watch = MemoryWatch()
    settings = {"LIMITS__MEMORY_BYTES": str(LEDGER_MIB << 20), "GRPC__BIND": ""}
    try:
        with (
            synthetic(tmp_path / "engine", SYNTHETIC__DIMENSIONS="4096") as server,
            aggregators(kafka, tmp_path, name) as start,
        ):
            running = await asyncio.to_thread(start, server, topics=topics, settings=settings)
            watch.add(running.process.pid)
            async with open_kafka_client(kafka.bootstrap, topics) as desk:
                await desk.until_committed(running.group, timeout_s=400)
                assert await desk.written_replies() == count
    finally:
        watch.stop()
    assert 100 < watch.peak_mib < BASE_MIB + PART_OF_COPIES * LEDGER_MIB + BATCH_MIB + PARTITIONS
