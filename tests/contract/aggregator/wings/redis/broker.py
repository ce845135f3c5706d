"""Redis behind the interface of brokers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aggregator.admission.ledger import MEMORY_BYTES, Ledger
from aggregator.observability.metrics import Metrics
from aggregator.registry import KINDS
from aggregator.sources.brokers import BrokerParts
from aggregator.wings.redis.connection import connect, disconnect, prepare_streams
from aggregator.wings.redis.settings import RedisClientSettings, RedisSettings, StreamSettings
from aggregator.wings.redis.source import RedisSource
from k8s.pod.metrics_buffer import MetricsBuffer
from loadtest.stack.redis import UNSYNCED, RedisServer
from tests.support.brokers import Broker, Fields


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
        parts = BrokerParts(
            KINDS,
            "m",
            room=lambda _, __: self.room_tokens,
            intake=self.intake,
            dimensions=lambda _: self.dimensions,
            known=lambda _: True,
            trusts_tenant=True,
            metrics=Metrics(self.metrics),
        )
        source = RedisSource(settings, client, parts)
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


@asynccontextmanager
async def redis(_: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Broker]:
    """A server of its own, and a stream in it."""
    with RedisServer(tmp_path / "redis", settings=UNSYNCED) as server:
        broker = RedisAsBroker(server.address)
        yield broker
        await broker.close()
