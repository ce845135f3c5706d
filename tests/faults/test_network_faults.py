"""The network between an aggregator and Kafka, or a model server, is slow or cut under load: nothing is split."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.ports import free_ports
from tests.faults.relay import Relay
from tests.faults.rows import Figures
from tests.faults.scene import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


def port_of(address: str) -> int:
    """The port of host:port."""
    return int(address.rpartition(":")[2])


@pytest_asyncio.fixture
async def relayed(tmp_path: Path) -> AsyncIterator[tuple[Scene, Relay]]:
    """A scene whose aggregators reach their broker through a relay only, and whose checker does not."""
    far_port, relay_port = free_ports(2)
    broker = KafkaBroker(tmp_path / "kafka")
    seat = broker.seat
    broker.settings |= {
        "listeners": (
            f"PLAINTEXT://localhost:{seat.port},FAR://localhost:{far_port},CONTROLLER://localhost:{seat.controller_port}"
        ),
        "advertised.listeners": f"PLAINTEXT://localhost:{seat.port},FAR://localhost:{relay_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    with broker:
        async with Relay(far_port, relay_port) as relay:
            scene = Scene(tmp_path, broker.bootstrap, beside=relay.address)
            await scene.open()
            yield scene, relay
            await scene.close()


@pytest.mark.row("200 ms of delay, each way, between aggregator and Kafka")
async def test_a_slow_way_to_kafka(relayed: tuple[Scene, Relay], figures: Figures) -> None:
    scene, relay = relayed
    await scene.server()
    await scene.aggregator()
    async with scene.under_load(200):
        async with scene.fault():
            relay.delay_s = 0.2
            await scene.answers(2000)
            relay.delay_s = 0.0
        await scene.answers(1000)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()


@pytest.mark.row("one of two aggregators cut off from Kafka until the group has gone on without it")
@pytest.mark.parametrize("cut_s", [15.0, 60.0])
async def test_a_cut_from_kafka_splits_nothing(relayed: tuple[Scene, Relay], figures: Figures, cut_s: float) -> None:
    scene, relay = relayed
    await scene.server()
    await scene.aggregator()
    scene.beside = ""
    await scene.aggregator()
    async with scene.under_load(200):
        async with scene.fault():
            relay.cut()
            await asyncio.sleep(cut_s)  # the fault itself
            relay.mend()
        await scene.answers(2000)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()


@pytest.mark.row("one of two model servers cut off from the aggregator, then 200 ms away")
async def test_a_cut_from_a_model_server_is_got_round(scene: Scene, figures: Figures) -> None:
    near, far = [await scene.server() for _ in range(2)]
    async with Relay(port_of(far.address)) as relay:
        await scene.aggregator(near.address, relay.address)
        async with scene.under_load(200):
            async with scene.fault():
                relay.cut()
                await asyncio.sleep(20.0)  # the fault itself
                relay.mend()
            await scene.answers(1000)
            relay.delay_s = 0.2
            await scene.answers(1000)
            relay.delay_s = 0.0
        verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
