"""The rates of tenants that the settings ask for."""

from __future__ import annotations

from math import inf

from typing_extensions import override

from aggregator.replicas.targets import OpenTargets, fixed
from aggregator.settings.aggregator import TenantSettings
from aggregator.wings.quotas.buckets import QuotaPolicy, TokenBuckets
from aggregator.wings.quotas.ready_aggregators import ReadyAggregators


class TenantRates(TokenBuckets):
    """Each tenant's rate, divided among the ready aggregators."""

    def __init__(self, settings: TenantSettings, open_targets: OpenTargets = fixed) -> None:
        """Raises StartError for aggregators that `open_targets` cannot follow."""
        rate = inf if settings.tokens_per_s is None else settings.tokens_per_s
        self._ready = ReadyAggregators(settings.aggregators if settings.limited else "1", open_targets)
        super().__init__(QuotaPolicy(rate, settings.rates), self._ready)

    @override
    async def run(self) -> None:
        await self._ready.run()
