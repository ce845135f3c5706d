"""Redis as a kind of broker, by its group of settings."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from aggregator.settings.aggregator import AggregatorSettings
from aggregator.sources.brokers import Broker, BrokerParts
from aggregator.wings.redis.connection import connect, prepare_streams
from aggregator.wings.redis.settings import RedisSettings
from aggregator.wings.redis.source import RedisSource


def _open(settings: AggregatorSettings, parts: BrokerParts) -> RedisSource | None:
    redis = settings.group(RedisSettings)
    return RedisSource(redis, connect(redis), parts) if redis is not None and redis.enabled else None


def _check(settings: AggregatorSettings, timeout_s: float) -> tuple[str, Awaitable[Sequence[str]]] | None:
    redis = settings.group(RedisSettings)
    if redis is None or not redis.enabled:
        return None
    return f"redis {redis.servers}", prepare_streams(redis, timeout_s, create=False)


REDIS_BROKER = Broker(_open, _check)
