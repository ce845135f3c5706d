"""A rate is divided among the aggregators that are ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aggregator.wings.discovery.discovery import Discovery
from aggregator.wings.quotas.buckets import QuotaPolicy, TokenBuckets
from aggregator.wings.quotas.ready_aggregators import ReadyAggregators
from tests.support.fake_kubernetes import SLICES, FakeKubernetesApi, slice_of
from tests.support.until import until

PATH = f"{SLICES.format(namespace='ns')}/one"


@asynccontextmanager
async def counting(ready: ReadyAggregators) -> AsyncGenerator[None]:
    task = asyncio.create_task(ready.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_endpoints_of_a_service_divide_a_rate_as_they_come_and_go() -> None:
    api = FakeKubernetesApi()
    api.put(PATH, slice_of("10.0.0.1", "10.0.0.2"))
    async with api.started():
        ready = ReadyAggregators("k8s://a.ns:50051", lambda targets: Discovery(targets, api.client))
        quotas = TokenBuckets(QuotaPolicy(100.0, burst_s=1.0), ready)
        assert ready() == 1
        async with counting(ready):
            await until(lambda: ready() == 2)
            assert quotas.wait_s("a", 50, 0.0) == 0
            quotas.charge("a", 50, 0.0)
            assert quotas.wait_s("a", 50, 0.0) == 1.0  # half the rate, and so twice the time
            api.delete(PATH)
            await until(lambda: ready() == 1)  # this one is there, whatever the API says
