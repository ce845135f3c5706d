"""Much at once, and much for long: a burst that must be worked off with flat memory, and a soak with every fault.

FAULTS_BURST is the burst's number of records, FAULTS_SOAK_S the soak's seconds, FAULTS_SEED the seed of its faults.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.part import Part
from loadtest.stack.service import ModelServer
from tests.faults.memory_watch import growth_mib, resident_mib
from tests.faults.row_stack import RowStack, Variant
from tests.faults.rows import Figures
from tests.faults.topic_logs import end_offsets
from tests.support.kafka_client import committed
from tests.support.scrape import metrics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BURST = int(os.environ.get("FAULTS_BURST", "1000000"))
SOAK_S = float(os.environ.get("FAULTS_SOAK_S", "1800"))
SEED = int(os.environ.get("FAULTS_SEED", "1"))
SPAN = 20_000
CALM_S = 5.0
NOISE_MIB = 20.0


@pytest.mark.row("a burst of records far beyond the capacity")
@pytest.mark.timeout(3600)
async def test_a_burst_is_worked_off_with_flat_memory(stack: RowStack, figures: Figures) -> None:
    await stack.server(SYNTHETIC__FIXED_S="0.002")
    settings = {
        "BATCHING__TOKEN_BUDGET": "4000",
        "CONSTANTS": f'{{"aggregator.settings.aggregator:ClientSettings.max_commit_span": {SPAN}}}',
    }
    aggregator = await stack.aggregator(settings=settings)
    await stack.load.send(2000)
    assert await stack.drained()
    calm_mib = resident_mib(aggregator.pid)
    spans: list[float] = []
    async with stack.fault():
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(stack.load.send(BURST))
            while not sending.done() or await lag(stack):
                spans.append(most(aggregator.metrics_address, "tokenbatch_consumer_uncommitted_span"))
                await asyncio.sleep(1.0)
        rate = BURST / (time.monotonic() - began_s)
    verdict = await stack.verdict(1800.0)
    grown_mib = verdict.peak_mib - calm_mib
    figures.take(verdict, rate=round(rate), grown_mib=round(grown_mib), largest_span=max(spans))
    assert verdict.problems == ()
    assert grown_mib < 400.0
    assert max(spans) <= SPAN


async def lag(stack: RowStack) -> int:
    """Records that are not committed yet."""
    ends = await end_offsets(stack.kafka, stack.topics.requests)
    offsets = await committed(stack.kafka, stack.topics.requests)
    return sum(end - offsets.get(partition, 0) for partition, end in ends.items())


def most(address: str, name: str) -> float:
    """The largest of a metric's series."""
    return max((sample.value for sample in metrics(address).samples if sample.name == name), default=0.0)


def faults_of(
    stack: RowStack, lasting: Variant, broker: KafkaBroker, chance: random.Random
) -> Sequence[Callable[[], Awaitable[None]]]:
    """Each breaks something and mends it again; only freezes befall `lasting`, so that its memory can be watched."""

    def mortal() -> Variant:
        return chance.choice([each for each in stack.aggregators if each is not lasting])

    async def frozen(victim: Part, longest_s: float) -> None:
        victim.pause()
        await asyncio.sleep(chance.uniform(1.0, longest_s))  # the fault itself
        victim.resume()

    async def killed(*victims: ModelServer) -> None:
        for victim in victims:
            victim.kill()
        await asyncio.sleep(chance.uniform(0.0, 5.0))  # the fault itself
        for victim in victims:
            await asyncio.to_thread(victim.start)

    async def kill_an_aggregator() -> None:
        victim = mortal()
        victim.kill()
        await stack.start(victim)

    async def stop_an_aggregator() -> None:
        victim = mortal()
        assert await stack.stop(victim) == [0]
        await stack.start(victim)

    async def restart_the_broker() -> None:
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)

    async def kill_the_broker() -> None:
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)

    return (
        kill_an_aggregator,
        stop_an_aggregator,
        lambda: frozen(chance.choice(stack.aggregators), 15.0),
        lambda: killed(chance.choice(stack.servers)),
        lambda: frozen(chance.choice(stack.servers), 10.0),
        lambda: killed(*stack.servers),
        restart_the_broker,
        kill_the_broker,
    )


@pytest.mark.row("a soak with kills, freezes, stops and restarts of everything at random moments")
@pytest.mark.timeout(SOAK_S + 900)
async def test_a_soak_loses_nothing(broker: KafkaBroker, stack: RowStack, figures: Figures) -> None:
    chance = random.Random(SEED)
    for _ in range(2):
        await stack.server()
    lasting, *_ = [await stack.aggregator() for _ in range(3)]
    faults = faults_of(stack, lasting, broker, chance)
    done: list[int] = []
    ends_s = time.monotonic() + SOAK_S
    async with stack.fault_under_load(200, then=2000):
        while time.monotonic() < ends_s:
            done.append(chance.randrange(len(faults)))
            await faults[done[-1]]()
            await stack.answers(200)
            await asyncio.sleep(chance.uniform(0.0, CALM_S))  # some faults come soon after one another
    grown_mib = growth_mib(stack.memory.readings_mib[lasting.pid])
    more = {"faults": len(done), "seed": SEED, "seconds": SOAK_S, "grown_mib": round(grown_mib, 1)}
    verdict = figures.take(await stack.verdict(400.0), **more)
    assert verdict.problems == (), done
    assert grown_mib < NOISE_MIB
