"""Brokers restart, die, hand over and stay away under load: aggregators wait, and go on by themselves."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from loadtest.stack.kafka import KafkaBroker, KafkaCluster
from tests.faults.memory_watch import resident_mib
from tests.faults.rows import Figures
from tests.faults.scene import Scene, opened
from tests.faults.topic_logs import connected_admin
from tests.integration.aggregator.scrape import page

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]

_ACTIVE = re.compile(r"Becoming the active controller at epoch (\d+)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers; a row leaves all of them running."""
    with KafkaCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def replicated(cluster: KafkaCluster, tmp_path: Path) -> AsyncIterator[Scene]:
    """A scene with three copies of everything, of which two must be in step."""
    async with opened(Scene(tmp_path, cluster.bootstrap, partitions=6, replication=3)) as scene:
        yield scene


@pytest.mark.row("the only broker restarts")
@pytest.mark.short
async def test_a_restart_of_the_broker_is_waited_for(
    own_kafka: KafkaBroker, own_scene: Scene, figures: Figures, timed: bool
) -> None:
    broker, scene = own_kafka, own_scene
    await scene.server()
    await scene.aggregator()
    async with scene.under_load():
        async with scene.fault():
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
        await scene.answers(1500)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert verdict.recovery_s < 30.0 or not timed


@pytest.mark.row("all brokers down for 60 s; one of two aggregators is stopped meanwhile")
async def test_without_brokers_memory_is_bounded_and_a_stop_ends(
    own_kafka: KafkaBroker, own_scene: Scene, figures: Figures
) -> None:
    broker, scene = own_kafka, own_scene
    await scene.server()
    first, second = [await scene.aggregator() for _ in range(2)]
    async with scene.under_load():
        before_mib = resident_mib(first.pid)
        async with scene.fault():
            began_s = time.monotonic()
            await asyncio.to_thread(broker.kill)
            await unready(first.metrics_address)
            assert page(first.metrics_address, "/livez")[0] == 200
            assert await scene.stop(second) == [0]
            stopped_s = time.monotonic() - began_s
            await asyncio.sleep(60.0 - (time.monotonic() - began_s))  # the fault itself
            assert page(first.metrics_address, "/livez")[0] == 200
            after_mib = resident_mib(first.pid)
            await asyncio.to_thread(broker.start)
        await scene.answers(1500)
    verdict = figures.take(await scene.verdict(), memory_growth_mib=round(after_mib - before_mib, 1))
    assert verdict.problems == ()
    assert stopped_s < 45.0
    assert after_mib - before_mib < 50.0


async def unready(address: str) -> None:
    """Wait until a process says that it is not ready; raises TimeoutError."""
    async with asyncio.timeout(30):
        while page(address, "/readyz")[0] == 200:  # noqa: ASYNC110 - a page calls nobody
            await asyncio.sleep(0.2)


async def leader(scene: Scene, cluster: KafkaCluster) -> KafkaBroker:
    """Who leads the first partition of the requests."""
    async with connected_admin(scene.kafka) as admin:
        (found,) = await admin.describe_topics([scene.topics.requests])
    (node,) = [part["leader"] for part in found["partitions"] if part["partition"] == 0]
    return of_id(cluster, node)


async def coordinator(scene: Scene, cluster: KafkaCluster) -> KafkaBroker:
    """Who coordinates the consumer group."""
    async with connected_admin(scene.kafka) as admin:
        return of_id(cluster, await admin.find_coordinator(scene.topics.requests))


async def controller(scene: Scene, cluster: KafkaCluster) -> KafkaBroker:
    """Who became the active controller last, by their own words."""
    del scene
    epochs = {broker.seat.node_id: _epochs(broker) for broker in cluster.brokers}
    return of_id(cluster, max(epochs, key=lambda node: epochs[node]))


def _epochs(broker: KafkaBroker) -> int:
    return max((int(epoch) for epoch in _ACTIVE.findall(broker.child.log.text())), default=-1)


def of_id(cluster: KafkaCluster, node: int) -> KafkaBroker:
    """The broker with this id."""
    return next(broker for broker in cluster.brokers if broker.seat.node_id == node)


@pytest.mark.row("one of three brokers fails and returns")
@pytest.mark.parametrize("find", [leader, coordinator, controller])
@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
async def test_a_broker_that_goes_hands_over(
    replicated: Scene,
    cluster: KafkaCluster,
    figures: Figures,
    find: Callable[[Scene, KafkaCluster], Awaitable[KafkaBroker]],
    crash: bool,
) -> None:
    scene = replicated
    await scene.server()
    for _ in range(2):
        await scene.aggregator()
    async with scene.under_load(200):
        victim = await find(scene, cluster)
        async with scene.fault():
            await asyncio.to_thread(victim.kill if crash else victim.stop)
        await scene.answers(1000)
        await asyncio.to_thread(victim.start)
        await scene.answers(600)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert verdict.recovery_s < 60.0
