"""The latency target sets the budgets of a running pipeline."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import Replica
from aggregator.wings.sla.controller import SlaGoal, SloTracker
from tests.support.fake_source import KAFKA
from tests.support.faked_pipeline import CURVE, DESCRIPTION, FakedPipeline, new_engine
from tests.support.virtual_time import in_virtual_time
from tests.unit.aggregator.wings.scaler.reporting.test_meter import report

SLOWED = replace(DESCRIPTION, curve=Curve(0.0, 0.002, 1e-5, 800, Rule.THROUGHPUT, 4096))
"""A server that measured itself when it was quick: 10 ms for the 800 tokens of its saturation point."""


async def flood(faked: FakedPipeline, seconds: float) -> None:
    """More work than one replica can do, for a while; a text of 18 words has 20 tokens."""
    loop = asyncio.get_running_loop()
    until_s, number = loop.time() + seconds, 10
    while loop.time() < until_s:
        if faked.model.admission.total < 6000:
            texts = [f"{number + index}{' 5' * 17}" for index in range(70)]
            faked.produce(*(faked.request(text, source=KAFKA) for text in texts))
            number += 70
        await asyncio.sleep(0.002)


def replica_of(faked: FakedPipeline) -> Replica:
    [model_revision] = faked.pipeline.models.in_service()
    [replica] = model_revision.dispatcher.replicas.values()
    return replica


@in_virtual_time
async def test_a_missed_target_shrinks_the_budget_and_a_healed_pod_gets_it_back() -> None:
    engine = new_engine(description=SLOWED, slowness=2.0)  # 20 ms a full step, where 8 ms are wanted
    async with FakedPipeline(
        engine, service_level=partial(SloTracker, SlaGoal(answer_s=0.016, min_tokens=20))
    ).started() as faked:
        replica = replica_of(faked)
        assert replica.token_budget == 800
        await flood(faked, 1.0)
        assert replica.token_budget == pytest.approx(200, rel=0.15)
        engine.slowness = 1.0
        await flood(faked, 1.0)
        assert replica.token_budget == pytest.approx(600, rel=0.15)
        assert max(batch.token_count for batch in engine.batches[-20:]) <= 650


@in_virtual_time
async def test_a_promise_is_told_with_how_it_was_kept_and_if_budgets_can_fall() -> None:
    level = partial(SloTracker, SlaGoal(answer_s=0.004, min_tokens=16))
    async with FakedPipeline(new_engine(slowness=100.0), service_level=level).started() as faked:
        model = report(faked).models[0]
        assert (model.slo_s, model.p99_s, model.replicas[0].budget_at_floor) == (0.004, 0.0, False)
        for _ in range(60):
            await asyncio.gather(*(faked.embed("1 " * 20) for _ in range(10)))
        model = report(faked).models[0]
    assert model.p99_s > 0.2
    assert model.replicas[0].budget_at_floor
    assert model.replicas[0].address == "server-1:1"
    assert model.replicas[0].step_time_s > CURVE.time_s(16)
