"""A plain Kafka client for tests: it produces records and reads replies, byte for byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tokenbatch_client.kafka import JSON, PROTOBUF, Reply

from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.patience import patient
from tests.support.until import until

__all__ = ["JSON", "PROTOBUF"]
TEXT = ("content-type", b"text/plain")


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one aggregator under test."""

    requests: str
    replies: str

    @property
    def dead_letters(self) -> str:
        """Where records go that nobody could answer."""
        return f"{self.requests}-dlt"


@dataclass(frozen=True, slots=True)
class Sent:
    """One record to produce."""

    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = (PROTOBUF,)
    key: bytes | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """Where a record was written, and the time it carries."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def query(text: str, request_id: str = "", **fields: Any) -> Sent:
    """A request of one text, as protobuf, keyed by its id."""
    message = pb.EmbedRequest(request_id=request_id, inputs=[pb.Input(text=text)], **fields)
    return Sent(message.SerializeToString(), key=request_id.encode() or None)


@dataclass(eq=False)
class KafkaClient:
    """An open desk: `replies` and `dead_letters` grow as `until` waits."""

    bootstrap: str
    topics: Topics
    replies: list[ConsumerRecord[bytes, bytes]] = field(default_factory=list[Any])
    dead_letters: list[ConsumerRecord[bytes, bytes]] = field(default_factory=list[Any])
    _producer: Any = None
    _consumer: Any = None

    async def produce(self, *records: Sent) -> list[Written]:
        """Send records in order, to partitions in turn where they name none; returns where each was written."""
        now_ms = int(
            time.time() * 1000
        )  # said here, as what aiokafka says that it wrote is off by a millisecond or two
        writes = [
            await self._producer.send(
                self.topics.requests,
                value=each.value,
                key=each.key,
                headers=list(each.headers),
                partition=number % 2 if each.partition is None else each.partition,
                timestamp_ms=now_ms,
            )
            for number, each in enumerate(records)
        ]
        places = await asyncio.gather(*writes)
        return [Written(place.topic, place.partition, place.offset, now_ms) for place in places]

    async def until(self, done: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Read until `done`; raises TimeoutError."""
        deadline_s = time.monotonic() + patient(timeout_s)
        while not done():
            await self._read(0.1)
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{len(self.replies)} replies and {len(self.dead_letters)} dead letters came")

    async def linger(self, duration_s: float = 1.0) -> None:
        """Read on, for what should not come."""
        deadline_s = time.monotonic() + duration_s
        while time.monotonic() < deadline_s:
            await self._read(0.1)

    async def exchange(self, *records: Sent, dead: int = 0, answered: int | None = None) -> list[Written]:
        """Produce, and read until every record is answered, or `answered` are, and `dead` are dead-lettered.

        Returns where each was written.
        """
        expected = len(self.replies) + (len(records) if answered is None else answered)
        buried = len(self.dead_letters) + dead
        written = await self.produce(*records)
        await self.until(lambda: len(self.replies) >= expected and len(self.dead_letters) >= buried)
        return written

    async def until_committed(self, group: str, timeout_s: float = 60.0) -> None:
        """Wait until the group has committed the end of the requests; raises TimeoutError."""
        tps = [TopicPartition(self.topics.requests, number) for number in range(2)]
        ends = {(tp.topic, tp.partition): end for tp, end in (await self._consumer.end_offsets(tps)).items()}
        seen: dict[tuple[str, int], int] = {}
        deadline_s = time.monotonic() + patient(timeout_s)
        while seen != ends:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"committed is {seen}, not {ends}")
            await asyncio.sleep(0.1)
            seen = await committed(self.bootstrap, group)

    async def written_replies(self) -> int:
        tps = [TopicPartition(self.topics.replies, number) for number in range(2)]
        return sum((await self._consumer.end_offsets(tps)).values())

    def answers(self) -> dict[str, pb.EmbedResponse]:
        return {answer.request_id: answer for answer in map(read, self.replies)}

    async def _read(self, timeout_s: float) -> None:
        for partition, records in (await self._consumer.getmany(timeout_ms=int(timeout_s * 1000))).items():
            kept = self.dead_letters if partition.topic == self.topics.dead_letters else self.replies
            kept.extend(records)


@asynccontextmanager
async def open_kafka_client(bootstrap: str, topics: Topics, *further: str) -> AsyncGenerator[KafkaClient]:
    """A desk that reads replies, dead letters and `further` topics from now on."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=16 * 1024 * 1024)
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, fetch_max_bytes=64 * 1024 * 1024, max_partition_fetch_bytes=16 * 1024 * 1024
    )
    await producer.start()
    await consumer.start()
    try:
        wanted = (topics.replies, topics.dead_letters, *further)
        partitions = [TopicPartition(topic, number) for topic in wanted for number in range(2)]
        consumer.assign(partitions)
        await consumer.seek_to_end(*partitions)
        yield KafkaClient(bootstrap, topics, _producer=producer, _consumer=consumer)
    finally:
        await producer.stop()
        await consumer.stop()


@asynccontextmanager
async def connected_admin(bootstrap: str) -> AsyncGenerator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def make_topics(
    bootstrap: str,
    *names: str,
    partitions: int = 2,
    replication: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create topics, and wait until the broker knows them."""
    topics = [NewTopic(name, partitions, replication, topic_configs=dict(configs or {})) for name in names]
    async with connected_admin(bootstrap) as admin:
        await admin.create_topics(topics)

        async def known() -> bool:
            return set(names) <= set(await admin.list_topics())

        await until(known, every_s=0.05)


async def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic, and wait until its broker takes nothing for it any more."""
    async with connected_admin(bootstrap) as admin:
        await admin.delete_topics([name])

        async def gone() -> bool:
            return name not in await admin.list_topics()

        await until(gone, 200.0, every_s=0.05)


async def committed(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    """What a consumer group has committed, by topic and partition."""
    async with connected_admin(bootstrap) as admin:
        offsets = await admin.list_consumer_group_offsets(group)
    return {(place.topic, place.partition): found.offset for place, found in offsets.items()}


def read(reply: ConsumerRecord[bytes, bytes]) -> pb.EmbedResponse:
    return Reply("", reply, headers(reply)).read(pb.EmbedResponse)


def headers(record: ConsumerRecord[Any, Any]) -> dict[str, bytes]:
    return dict(record.headers)
