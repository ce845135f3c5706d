"""One interface over the brokers behind a source: Kafka, in memory and real, and Redis."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from aggregator.admission.ledger import MEMORY_BYTES, Ledger
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.request.request import Source
from aggregator.settings.aggregator import TopicSettings
from aggregator.settings.redis import RedisClientSettings, RedisSettings, StreamSettings
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.source import KafkaSource
from aggregator.sources.redis.connection import connect, disconnect, prepare_streams
from aggregator.sources.redis.source import RedisSource
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.support.kafka_clusters import Cluster

Fields = Mapping[str, bytes]


class Broker(Protocol):
    """What a test may ask of a broker with one place for requests, one for replies and one for dead letters."""

    metrics: MetricsBuffer

    def opened(self, **changes: Any) -> AbstractAsyncContextManager[Source]:
        """A source of the same group as all others of this broker; at the end it goes away as if it was killed."""
        ...

    async def send(self, value: bytes, **fields: bytes) -> None:
        """Put a request there; `fields`: content_type, reply_to and others, as both call them."""
        ...

    async def replies(self) -> list[bytes]: ...

    async def letters(self) -> list[tuple[bytes, Fields]]:
        """The values of all dead letters, and the fields with the reason."""
        ...

    async def unfinished(self) -> int:
        """Requests that would be read again after a crash."""
        ...


class KafkaAsBroker:
    """A topic of one partition; each broker has topics and a group of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.metrics = MetricsBuffer()
        self._topic = self._replies = ""

    async def prepare(self) -> None:
        self._topic, self._replies = await self._cluster.create_topic(), await self._cluster.create_topic()
        self._letters = await _named(self._cluster, f"{self._topic}-dlt")
        self._producer = self._cluster.producer(self._cluster.settings())
        await self._producer.start()

    async def close(self) -> None:
        await self._producer.close(1)

    @asynccontextmanager
    async def opened(self, **changes: Any) -> AsyncGenerator[Source]:
        settings = self._cluster.settings(
            reply_topic=self._replies, topics=(TopicSettings(name=self._topic, **changes),), session_timeout_s=6.0
        )
        consumer = self._cluster.consumer(settings, lambda _: None, Metrics(MetricsBuffer()))
        producer = self._cluster.producer(settings)
        await producer.start()
        source = KafkaSource(settings, "m", consumer, producer, metrics=Metrics(self.metrics), tracing=Tracing())
        running = asyncio.create_task(consumer.run())
        try:
            yield source
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await producer.close(1)
            await consumer.close(1)

    async def send(self, value: bytes, **fields: bytes) -> None:
        headers = [(name.replace("content_type", "content-type"), each) for name, each in fields.items()]
        async for delivered in self._producer.send([OutgoingRecord(self._topic, None, None, value, headers)]):
            assert all(error is None for _, error in delivered)

    async def replies(self) -> list[bytes]:
        return [record.value or b"" for record in await self._cluster.read(self._replies)]

    async def letters(self) -> list[tuple[bytes, Fields]]:
        return [(record.value or b"", dict(record.headers)) for record in await self._cluster.read(self._letters)]

    async def unfinished(self) -> int:
        written = len(await self._cluster.read(self._topic))
        return written - (await self._cluster.committed(self._topic)).get(0, 0)


async def _named(cluster: Cluster, name: str) -> str:
    """A topic of this name."""
    create: Any = getattr(cluster, "create_named_topic", None)
    if create is not None:
        await create(name)
    else:
        getattr(cluster, "kafka").create_topic(name, 1)  # noqa: B009 - only the fake has it
    return name


class RedisAsBroker:
    """A stream; each broker has keys of its own."""

    def __init__(self, address: str, **changes: Any) -> None:
        name = secrets.token_hex(4)
        self.metrics = MetricsBuffer()
        self.requests, self.out = f"{name}-in", f"{name}-out"
        own = {
            "servers": address,
            "streams": (StreamSettings(name=self.requests),),
            "reply_stream": self.out,
            "client": RedisClientSettings().model_copy(update={"takeover_idle_s": 1.0}),
        }
        self.settings = RedisSettings.model_validate({**own, **changes})
        self.client = connect(self.settings)
        self.room_tokens = 100_000
        self.intake = Ledger(MEMORY_BYTES).intake
        self.dimensions = 0

    async def close(self) -> None:
        await disconnect(self.client)

    @asynccontextmanager
    async def opened(self, **changes: Any) -> AsyncGenerator[RedisSource]:
        settings = self.settings.model_copy(update={"streams": (StreamSettings(name=self.requests, **changes),)})
        await prepare_streams(settings, 5.0)
        client = connect(settings)
        source = RedisSource(
            settings,
            "m",
            client,
            room=lambda _, __: self.room_tokens,
            intake=self.intake,
            dimensions=lambda _: self.dimensions,
            known=lambda _: True,
            trusts_tenant=True,
            metrics=Metrics(self.metrics),
        )
        running = asyncio.create_task(source.run())
        try:
            yield source
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await disconnect(client)

    async def send(self, value: bytes, **fields: bytes) -> None:
        added = {name.replace("content_type", "content-type"): each for name, each in fields.items()}
        await self.client.xadd(self.requests, {"value": value, **added})

    def counted(self, name: str) -> Mapping[str, float]:
        """What a counter counted, by the last of its labels; what it counted nothing of is left out."""
        found = [metric for metric in self.metrics.collect().metrics if metric.name == name]
        points: list[Any] = [point for metric in found for point in metric.data.data_points]
        return {list(point.attributes.values())[-1]: point.value for point in points if point.value}

    async def replies(self) -> list[bytes]:
        return [fields[b"value"] for _, fields in await self.client.xrange(self.out)]

    async def letters(self) -> list[tuple[bytes, Fields]]:
        found = await self.client.xrange(f"{self.requests}-dlt")
        return [
            (fields.get(b"value", b""), {name.decode(): value for name, value in fields.items()}) for _, fields in found
        ]

    async def unfinished(self) -> int:
        length: int = await self.client.xlen(self.requests)
        return length
