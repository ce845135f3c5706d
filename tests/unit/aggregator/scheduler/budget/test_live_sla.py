"""The latency target sets the budgets of a running pipeline."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from aggregator.scheduler.budget.controller import SlaGoal
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import Replica
from tests.support.fake_source import KAFKA
from tests.support.faked_pipeline import DESCRIPTION, FakedPipeline, new_engine
from tests.support.virtual_time import in_virtual_time

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
    async with FakedPipeline(engine, goal=SlaGoal(answer_s=0.016, min_tokens=20)).started() as faked:
        replica = replica_of(faked)
        assert replica.token_budget == 800
        await flood(faked, 1.0)
        assert replica.token_budget == pytest.approx(200, rel=0.15)
        engine.slowness = 1.0
        await flood(faked, 1.0)
        assert replica.token_budget == pytest.approx(600, rel=0.15)
        assert max(batch.token_count for batch in engine.batches[-20:]) <= 650
