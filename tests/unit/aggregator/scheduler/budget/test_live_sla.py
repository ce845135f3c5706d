"""The latency target sets the budgets of a running pipeline."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from typing_extensions import override

from aggregator.app import make_goal
from aggregator.observability.demand import DemandMeter
from aggregator.observability.gauges import gauge_values
from aggregator.replicas.engine import OutgoingBatch, StepResult
from aggregator.scheduler.budget.controller import SlaGoal, SloTracker
from aggregator.scheduler.replica import Replica
from aggregator.settings.aggregator import SlaSettings
from protos.modelserver.v1.curve import Curve, Rule
from tests.fakes.clock import run
from tests.fakes.engines import FakeEngine
from tests.fakes.sources import KAFKA
from tests.fakes.world import DESCRIPTION, World, new_engine

SLOWED = replace(DESCRIPTION, curve=Curve(0.0, 0.002, 1e-5, 800, Rule.THROUGHPUT, 4096))
"""A server that measured itself when it was quick: 10 ms for the 800 tokens of its saturation point."""


async def flood(world: World, seconds: float) -> None:
    """More work than one replica can do, for a while; a text of 18 words has 20 tokens."""
    loop = asyncio.get_running_loop()
    until_s, number = loop.time() + seconds, 10
    while loop.time() < until_s:
        if world.model.admission.total < 6000:
            texts = [f"{number + index}{' 5' * 17}" for index in range(70)]
            world.produce(*(world.request(text, source=KAFKA) for text in texts))
            number += 70
        await asyncio.sleep(0.002)


def replica_of(world: World) -> Replica:
    [model_revision] = world.pipeline.models.in_service()
    [replica] = model_revision.dispatcher.replicas.values()
    return replica


def tracker_of(world: World) -> SloTracker:
    [model_revision] = world.pipeline.models.in_service()
    assert model_revision.slo is not None
    return model_revision.slo


def shown_of(world: World) -> dict[str, list[float]]:
    """The values of each gauge."""
    found = gauge_values(world.pipeline.models, None)
    return {instrument.name: list(series.values()) for instrument, series in found.items()}


def test_a_target_that_is_missed_shrinks_the_budget_until_it_is_met_and_a_pod_that_heals_gets_it_back() -> None:
    async def check() -> None:
        engine = new_engine(description=SLOWED, slowness=2.0)  # 20 ms a full step, where 8 ms are wanted
        async with World(engine, goal=SlaGoal(answer_s=0.016, min_tokens=20)).started() as world:
            replica = replica_of(world)
            assert replica.token_budget == 800
            await flood(world, 2.0)
            assert replica.token_budget == pytest.approx(200, rel=0.15)
            engine.slowness = 1.0
            await flood(world, 2.0)
            assert replica.token_budget == pytest.approx(600, rel=0.15)
            assert max(batch.token_count for batch in engine.batches[-20:]) <= 650

    run(check())


def test_what_is_promised_for_answers_leaves_room_for_what_the_network_takes() -> None:
    class Distant(FakeEngine):
        @override
        async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
            await asyncio.sleep(0.004)
            return await super().embed(batch, timeout_s=timeout_s)

    async def check() -> None:
        async with World(Distant(SLOWED), goal=SlaGoal(answer_s=0.020, min_tokens=20)).started() as world:
            for number in range(200):
                await world.embed(str(number))
            await flood(world, 1.0)
            replica = replica_of(world)
            assert replica.budget_controller is not None
            assert replica.budget_controller.target_s == pytest.approx(0.008, rel=0.2)
            assert tracker_of(world).p99_s > 0.020

    run(check())


def test_gauges_and_the_scaler_are_told() -> None:
    async def check() -> None:
        goal = SlaGoal(answer_s=0.0001, min_tokens=20)
        async with World(new_engine(description=SLOWED), goal=goal).started() as world:
            await flood(world, 1.0)
            shown = shown_of(world)
            assert shown["embed.token_budget"] == [replica_of(world).token_budget]
            assert replica_of(world).token_budget < 200
            [pressure] = shown["embed.sla.pressure"]
            assert pressure >= 0.9
            demand = DemandMeter(world.pipeline.models).of(world.model)
            assert demand.replicas[0].budget_at_floor
            assert (demand.slo_s, demand.p99_s > 0.01) == (0.0001, True)

    run(check())


def test_without_a_promise_nothing_is_steered() -> None:
    async def check() -> None:
        async with World(new_engine(description=SLOWED, slowness=5.0)).started() as world:
            await flood(world, 1.0)
            assert replica_of(world).token_budget == 800
            assert shown_of(world)["embed.sla.pressure"] == []

    run(check())


def test_settings_become_a_goal() -> None:
    assert make_goal(SlaSettings()) is None
    assert make_goal(SlaSettings(latency_s=0.2)) == SlaGoal(answer_s=0.2)
