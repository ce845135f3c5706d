"""The tokens of inputs that need no computation count against a rate."""

from __future__ import annotations

from aggregator.errors import Code
from aggregator.wings.quotas.buckets import QuotaPolicy, TokenBuckets
from tests.support.fake_engine import FakeEngine
from tests.support.faked_pipeline import DESCRIPTION, FakedPipeline
from tests.support.virtual_time import in_virtual_time
from tests.unit.aggregator.wings.cache.test_cache import Caches


@in_virtual_time
async def test_hits_are_charged_to_the_tenants_rate() -> None:
    engine = FakeEngine(DESCRIPTION)
    async with FakedPipeline(engine, known=Caches(), quotas=TokenBuckets(QuotaPolicy(3.0))).started() as faked:
        codes = [(await faked.embed("10 20", tenant="a")).code for _ in range(40)]
    assert Code.RESOURCE_EXHAUSTED in codes
