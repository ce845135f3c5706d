"""Aggregators are killed, frozen, stopped and multiplied under load: what they leave, others take up."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.faults.rows import Figures
from tests.faults.scene import Scene, Variant

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]


def kills(*counts: int) -> pytest.MarkDecorator:
    """The fewest are for the short selection."""
    few, *more = counts
    return pytest.mark.parametrize("count", [pytest.param(few, marks=pytest.mark.short), *more])


@pytest.mark.row("aggregator killed (SIGKILL) at random moments")
@kills(3, 20)
async def test_killed_aggregators_lose_nothing(scene: Scene, figures: Figures, count: int) -> None:
    chance = random.Random(count)
    await scene.server()
    members = [await scene.aggregator() for _ in range(2)]
    async with scene.under_load():
        async with scene.fault():
            for number in range(count):
                victim = members[number % 2]
                await asyncio.sleep(chance.uniform(0.2, 1.5))
                victim.kill()
                await scene.start(victim)
        await scene.answers(1000)
    verdict = figures.take(await scene.verdict(), kills=count)
    assert verdict.problems == ()


@pytest.mark.row("aggregator frozen (SIGSTOP) until the group has reassigned its partitions, then resumed")
@pytest.mark.parametrize("frozen_s", [pytest.param(10.0, marks=pytest.mark.short), 60.0])
async def test_a_zombie_commits_nothing(scene: Scene, figures: Figures, frozen_s: float) -> None:
    await scene.server()
    zombie, _ = [await scene.aggregator() for _ in range(2)]
    async with scene.under_load():
        async with scene.fault():
            zombie.pause()
            await asyncio.sleep(frozen_s)  # the fault itself
            zombie.resume()
        await scene.answers(1000)
    verdict = figures.take(await scene.verdict(), frozen_s=frozen_s)
    assert verdict.problems == ()
    assert verdict.duplicates_share < 0.2


@pytest.mark.row("SIGTERM under full load")
@pytest.mark.short
async def test_a_stop_under_full_load_answers_nothing_twice(scene: Scene, figures: Figures, timed: bool) -> None:
    await scene.server(SYNTHETIC__FIXED_S="0.05")  # some 400 queries a second: fewer than are sent
    first = await scene.aggregator()
    async with scene.under_load(450):
        second = await scene.aggregator()
        async with scene.fault():
            began_s = time.monotonic()
            assert await scene.stop(first) == [0]
            stopped_s = time.monotonic() - began_s
        await scene.answers(600)
    verdict = figures.take(await scene.verdict(), stopped_s=round(stopped_s, 2))
    assert verdict.problems == ()
    assert verdict.duplicates == 0
    assert stopped_s < 25.0 or not timed
    assert second.exit_code == 0


@pytest.mark.row("rolling restart of 4 aggregators")
async def test_a_rolling_restart_is_hardly_noticed(scene: Scene, figures: Figures) -> None:
    await scene.server()
    members = [await scene.aggregator() for _ in range(4)]
    async with scene.under_load(200):
        async with scene.fault():
            for member in members:
                assert await scene.stop(member) == [0]
                await scene.start(member)
                await scene.answers(200)
        await scene.answers(1000)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert verdict.duplicates_share < 0.005
    assert verdict.gap_s < 5.0


@pytest.mark.row("rebalance storm: a member joins or leaves every 3 s")
@pytest.mark.parametrize("storm_s", [30.0, 180.0])
async def test_a_rebalance_storm_stops_no_partition(scene: Scene, figures: Figures, storm_s: float) -> None:
    await scene.server()
    await scene.aggregator()
    changes = 0
    async with scene.under_load(200):
        async with scene.fault():
            ends_s = time.monotonic() + storm_s
            guest: Variant | None = None
            while time.monotonic() < ends_s:
                due_s = time.monotonic() + 3.0
                if guest is None:
                    guest = await scene.aggregator(ready=False)
                else:
                    await scene.stop(guest)
                    guest = None
                changes += 1
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        await scene.answers(1000)
    verdict = figures.take(await scene.verdict(), changes=changes)
    assert verdict.problems == ()
    assert verdict.recovery_s < 30.0
