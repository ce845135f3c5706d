"""From a record to its committed outcome, a real broker at both ends: what is not written is not committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka import TopicPartition

from aggregator.errors import Code
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.request.request import Failure
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer, Writer
from aggregator.sources.kafka.source import KafkaSource
from k8s.pod.metrics_buffer import MetricsBuffer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import reply_all
from tests.support.kafka_clusters import RealCluster, produce, reading, until_committed

pytestmark = pytest.mark.kafka

GOOD = pb.EmbedRequest(request_id="q", inputs=[pb.Input(text="rain")]).SerializeToString()
REFUSED = Failure(Code.OUT_OF_RANGE, "too long")
BROKEN = Failure(Code.INTERNAL, "it broke")


@dataclass(frozen=True, slots=True)
class Way:
    """The Kafka side of an aggregator, and its three topics."""

    cluster: RealCluster
    path: KafkaSource
    requests: str
    replies: str
    letters: str

    async def answer(self, count: int, failure: Failure) -> None:
        """Take so many records in, and give each this outcome."""
        await produce(self.cluster, [OutgoingRecord(self.requests, 0, b"k", GOOD, [])] * count)
        taken = 0
        while taken < count:
            requests = await self.path.receive()
            taken += len(requests)
            for request in requests:
                request.fail(failure)
            await reply_all(self.path, requests)
        await self.path.delivered()


@asynccontextmanager
async def way(cluster: RealCluster, **reply_topic: str) -> AsyncGenerator[Way]:
    """One that is at work; `reply_topic`: that topic's settings."""
    requests = await cluster.create_topic()
    letters = await cluster.create_named_topic(f"{requests}-dlt")
    replies = await cluster.create_topic(1, **reply_topic)
    settings = cluster.settings(requests, reply_topic=replies)
    producer = KafkaProducer(settings)
    await producer.start()
    async with reading(cluster, settings) as intake:
        consumer: Any = intake.consumer
        path = KafkaSource(*(settings, "m", consumer, producer), metrics=Metrics(MetricsBuffer()), tracing=Tracing())
        await until_committed(cluster, requests, {0: 0})
        yield Way(cluster, path, requests, replies, letters)
    await producer.close(2)


@contextmanager
def withheld(topic: str) -> Generator[asyncio.Event]:
    """Let nothing be written to a topic until the event is set."""
    opened, really_write = asyncio.Event(), Writer.write

    async def write(
        self: Writer, tp: TopicPartition, records: Sequence[OutgoingRecord], *, own_clock: bool
    ) -> Exception | None:
        if tp.topic == topic:
            await opened.wait()
        return await really_write(self, tp, records, own_clock=own_clock)

    with patch.object(Writer, "write", write):
        yield opened


async def stays_uncommitted(one: Way) -> None:
    """For as long as many commits take."""
    for _ in range(20):
        await asyncio.sleep(0.05)
        assert await one.cluster.committed(one.requests) == {0: 0}


async def test_a_record_is_committed_only_once_the_broker_has_its_reply(shared: RealCluster) -> None:
    async with way(shared) as one:
        with withheld(one.replies) as opened:
            answering = asyncio.create_task(one.answer(5, REFUSED))
            await stays_uncommitted(one)
            opened.set()
            await answering
        await until_committed(shared, one.requests, {0: 5})
        assert len(await shared.read(one.replies)) == 5


async def test_a_record_is_committed_only_once_the_broker_has_its_dead_letter(shared: RealCluster) -> None:
    async with way(shared) as one:
        with withheld(one.letters) as opened:
            answering = asyncio.create_task(one.answer(5, BROKEN))
            await stays_uncommitted(one)
            assert len(await shared.read(one.replies)) == 5
            opened.set()
            await answering
        await until_committed(shared, one.requests, {0: 5})
        assert len(await shared.read(one.letters)) == 5


async def test_a_reply_that_the_broker_refuses_is_replaced_by_a_dead_letter(shared: RealCluster) -> None:
    async with way(shared, max_message_bytes="100") as one:
        await one.answer(5, REFUSED)
        assert not await shared.read(one.replies)
        letters = await shared.read(one.letters)
        assert [dict(letter.headers)["dlt-error-code"] for letter in letters] == [b"INTERNAL"] * 5
        await until_committed(shared, one.requests, {0: 5})
