"""All configuration of the aggregator: its own settings, and a group of each wing that has some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from aggregator.settings.aggregator import AggregatorSettings
from aggregator.settings.other_names import AGGREGATOR_NAMES
from aggregator.wings.authentication.settings import OTHER_NAMES, AuthenticatedGrpcSettings
from aggregator.wings.batches.settings import BatchesSettings
from aggregator.wings.redis.settings import RedisSettings


class AllSettings(AggregatorSettings):
    """All settings of the aggregator."""

    other_names: ClassVar[Mapping[str, str]] = AGGREGATOR_NAMES | OTHER_NAMES
    grpc: AuthenticatedGrpcSettings = AuthenticatedGrpcSettings()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    batches: BatchesSettings = BatchesSettings()
    redis: RedisSettings = RedisSettings()
