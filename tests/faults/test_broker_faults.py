"""Brokers restart, die, hand over and stay away under load: aggregators wait, and go on by themselves."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from loadtest.stack.kafka import KafkaBroker
from tests.faults.kafka_cluster import KafkaCluster
from tests.faults.memory_watch import resident_mib
from tests.faults.row_stack import PATIENCE_S, RowStack, opened
from tests.faults.rows import Figures
from tests.support.kafka_client import connected_admin
from tests.support.scrape import page
from tests.support.until import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]

_ACTIVE = re.compile(r"Becoming the active controller at epoch (\d+)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers; a row leaves all of them running."""
    with KafkaCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def replicated(cluster: KafkaCluster, tmp_path: Path) -> AsyncIterator[RowStack]:
    """A stack with three copies of everything, of which two must be in step."""
    async with opened(RowStack(tmp_path, cluster.bootstrap, partitions=6, replication=3)) as stack:
        yield stack


@pytest.mark.row("the only broker restarts")
@pytest.mark.short
async def test_a_restart_of_the_broker_is_waited_for(
    broker: KafkaBroker, stack: RowStack, figures: Figures, timed: bool
) -> None:
    await stack.server()
    aggregator = await stack.aggregator()
    async with stack.fault_under_load(150, then=600):
        await asyncio.to_thread(broker.stop)
        await asyncio.sleep(8.0)  # the fault itself: longer than the session, so that the member is replaced
        await asyncio.to_thread(broker.start)
    verdict = figures.take(await stack.verdict())
    down_s = (stack.line.healed_ms - stack.line.fault_ms) / 1000
    assert aggregator.child.log.text().count("Unable to update metadata") < 50 * down_s
    assert verdict.problems == ()
    assert verdict.recovery_s < 30.0 or not timed


@pytest.mark.row("all brokers down for 60 s; one of two aggregators is stopped meanwhile")
async def test_without_brokers_memory_is_bounded_and_a_stop_ends(
    broker: KafkaBroker, stack: RowStack, figures: Figures
) -> None:
    await stack.server()
    first, second = [await stack.aggregator() for _ in range(2)]
    async with stack.under_load():
        before_mib = resident_mib(first.pid)
        async with stack.fault():
            began_s = time.monotonic()
            await asyncio.to_thread(broker.kill)
            await until(lambda: page(first.metrics_address, "/readyz")[0] != 200, PATIENCE_S, 0.2)
            assert page(first.metrics_address, "/livez")[0] == 200
            assert await stack.stop(second) == [0]
            stopped_s = time.monotonic() - began_s
            await asyncio.sleep(60.0 - (time.monotonic() - began_s))  # the fault itself
            assert page(first.metrics_address, "/livez")[0] == 200
            after_mib = resident_mib(first.pid)
            await asyncio.to_thread(broker.start)
        await stack.answers(1500)
    await stack.passes(figures, memory_growth_mib=round(after_mib - before_mib, 1))
    assert stopped_s < 45.0
    assert after_mib - before_mib < 50.0


async def leader(stack: RowStack, cluster: KafkaCluster) -> KafkaBroker:
    async with connected_admin(stack.kafka) as admin:
        (found,) = await admin.describe_topics([stack.topics.requests])
    (node,) = [part["leader"] for part in found["partitions"] if part["partition"] == 0]
    return of_id(cluster, node)


async def coordinator(stack: RowStack, cluster: KafkaCluster) -> KafkaBroker:
    async with connected_admin(stack.kafka) as admin:
        return of_id(cluster, await admin.find_coordinator(stack.topics.requests))


async def controller(stack: RowStack, cluster: KafkaCluster) -> KafkaBroker:
    """Who became the active controller last, by their own words."""
    del stack
    epochs = {broker.seat.node_id: _epochs(broker) for broker in cluster.brokers}
    return of_id(cluster, max(epochs, key=lambda node: epochs[node]))


def _epochs(broker: KafkaBroker) -> int:
    return max((int(epoch) for epoch in _ACTIVE.findall(broker.child.log.text())), default=-1)


def of_id(cluster: KafkaCluster, node: int) -> KafkaBroker:
    return next(broker for broker in cluster.brokers if broker.seat.node_id == node)


@pytest.mark.row("one of three brokers fails and returns")
@pytest.mark.parametrize("find", [leader, coordinator, controller])
@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_a_broker_that_goes_hands_over(
    replicated: RowStack,
    cluster: KafkaCluster,
    figures: Figures,
    find: Callable[[RowStack, KafkaCluster], Awaitable[KafkaBroker]],
    crash: bool,
) -> None:
    stack = replicated
    await stack.server()
    for _ in range(2):
        await stack.aggregator()
    async with stack.under_load(200):
        victim = await find(stack, cluster)
        async with stack.fault():
            await asyncio.to_thread(victim.kill if crash else victim.stop)
        await stack.answers(1000)
        await asyncio.to_thread(victim.start)
        await stack.answers(600)
    verdict = await stack.passes(figures)
    assert verdict.recovery_s < 60.0
