"""What P2 measures against answers every record once, and commits it: a peer that did less would be no measure."""

import asyncio
from base64 import b64encode
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from aiohttp import web
from aiokafka import AIOKafkaConsumer, TopicPartition

from loadtest.lab.bench.setting import PARTITIONS, REQUESTS, Plan, Setting
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.part import Program
from loadtest.stack.ports import free_ports
from protos.embedding.v1 import embedding_pb2 as pb

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(200)]

QUERIES = 300
BATCH = 64


def test_it_answers_and_commits_every_record_in_calls_of_the_size_it_is_told(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    setting = Setting(Plan(tmp_path, QUERIES, 1, 2048), kafka.bootstrap, count())
    setting.fill(QUERIES)
    asyncio.run(consume(setting, setting.replies_topic()))


async def consume(kafka: Setting, replies: str) -> None:
    (port,) = free_ports(1)
    calls: list[int] = []

    async def embed(request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        calls.append(len(texts))
        vectors = [b64encode(text.encode()).decode() for text in texts]
        return web.json_response({"data": [{"embedding": vector} for vector in vectors]})

    app = web.Application()
    app.router.add_post("/v1/embeddings", embed)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    where = ["--bootstrap", kafka.bootstrap, "--url", f"http://127.0.0.1:{port}/v1/embeddings"]
    topics = ["--requests", REQUESTS, "--replies", replies, "--batch", str(BATCH)]
    log_file = kafka.plan.folder / "plain_consumer.log"
    part = Program("loadtest.lab.bench.programs.plain_consumer", [*where, *topics], log_file)
    part.launch()
    try:
        async with asyncio.timeout(100):
            answered = await read(kafka.bootstrap, replies)
            while await committed(kafka.bootstrap, replies) < QUERIES:  # noqa: ASYNC110 - another process commits
                await asyncio.sleep(0.1)
    finally:
        part.stop()
        await runner.cleanup()
    assert sorted(answered) == sorted(f"bench-{number}" for number in range(QUERIES))
    assert max(Counter(answered).values()) == 1
    assert sum(calls) == QUERIES
    assert max(calls) == BATCH


async def read(bootstrap: str, topic: str) -> list[str]:
    """The request ids of as many replies as there are queries."""
    ids: list[str] = []
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        while len(ids) < QUERIES:
            record = await consumer.getone()
            ids.append(pb.EmbedResponse.FromString(record.value or b"").request_id)
    return ids


async def committed(bootstrap: str, group: str) -> int:
    """Records below the group's committed offsets."""
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False) as consumer:
        offsets = [await consumer.committed(TopicPartition(REQUESTS, number)) for number in range(PARTITIONS)]
    return sum(offset or 0 for offset in offsets)
