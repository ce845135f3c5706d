"""One interface over the brokers behind a source, and Kafka behind it, in memory and real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.registry import KINDS, PROGRESS
from aggregator.request.request import Source
from aggregator.settings.aggregator import TopicSettings
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.source import KafkaSource
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
            reply_topic=self._replies, topics=(TopicSettings(name=self._topic, **changes),)
        )
        consumer = self._cluster.consumer(settings, lambda _: None, Metrics(MetricsBuffer()))
        producer = self._cluster.producer(settings)
        await producer.start()
        source = KafkaSource(
            settings,
            "m",
            consumer,
            producer,
            kinds=KINDS,
            progress=PROGRESS,
            metrics=Metrics(self.metrics),
            tracing=Tracing(),
        )
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
