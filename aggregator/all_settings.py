"""All configuration of the aggregator: its own settings, and a group of each wing that has some."""

from __future__ import annotations

from aggregator.settings.aggregator import AggregatorSettings
from aggregator.wings.authentication.settings import AuthenticatedGrpcSettings
from aggregator.wings.batches.settings import BatchesSettings
from aggregator.wings.redis.settings import RedisSettings


class AllSettings(AggregatorSettings):
    """All settings of the aggregator."""

    grpc: AuthenticatedGrpcSettings = AuthenticatedGrpcSettings()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    batches: BatchesSettings = BatchesSettings()
    redis: RedisSettings = RedisSettings()
