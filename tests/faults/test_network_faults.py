"""The network between an aggregator and Kafka, or a model server, is slow or cut under load: nothing is split."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.ports import free_ports
from tests.faults.network_namespace import CannotIsolate, Link, namespace
from tests.faults.relay import Relay
from tests.faults.row_stack import RowStack, opened
from tests.faults.rows import Figures

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]


def port_of(address: str) -> int:
    """The port of host:port."""
    return int(address.rpartition(":")[2])


def listening_twice(folder: Path, far: str, advertised: str) -> KafkaBroker:
    """A broker that listens at `far` too, and tells those who come there that it is at `advertised`."""
    broker = KafkaBroker(folder)
    seat = broker.seat
    broker.settings |= {
        "listeners": f"PLAINTEXT://localhost:{seat.port},FAR://{far},CONTROLLER://localhost:{seat.controller_port}",
        "advertised.listeners": f"PLAINTEXT://localhost:{seat.port},FAR://{advertised}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    return broker


@pytest_asyncio.fixture
async def relayed(tmp_path: Path) -> AsyncIterator[tuple[RowStack, Relay]]:
    """A stack whose aggregators reach their broker through a relay only, and whose checker does not."""
    far_port, relay_port = free_ports(2)
    with listening_twice(tmp_path / "kafka", f"localhost:{far_port}", f"localhost:{relay_port}") as broker:
        through_relay = RowStack(tmp_path, broker.bootstrap, beside=f"localhost:{relay_port}")
        async with Relay(far_port, relay_port) as relay, opened(through_relay) as stack:
            yield stack, relay


@pytest.mark.row("200 ms of delay, each way, between aggregator and Kafka")
async def test_a_slow_way_to_kafka(relayed: tuple[RowStack, Relay], figures: Figures) -> None:
    stack, relay = relayed
    await stack.server()
    await stack.aggregator()
    async with stack.fault_under_load(200, then=1000):
        relay.delay_s = 0.2
        await stack.answers(2000)
        relay.delay_s = 0.0
    await stack.passes(figures)


@pytest.mark.row("one of two aggregators cut off from Kafka until the group has reassigned its partitions")
@pytest.mark.parametrize("cut_s", [15.0, 60.0])
async def test_a_cut_from_kafka_splits_nothing(relayed: tuple[RowStack, Relay], figures: Figures, cut_s: float) -> None:
    stack, relay = relayed
    await stack.server()
    await stack.aggregator()
    stack.beside = ""
    await stack.aggregator()
    async with stack.fault_under_load(200, then=2000):
        relay.cut()
        await asyncio.sleep(cut_s)  # the fault itself
        relay.mend()
    await stack.passes(figures)


@dataclass(frozen=True, slots=True)
class FarSide:
    """A stack, and the settings of an aggregator in a separate network."""

    stack: RowStack
    environment: dict[str, str]
    to_kafka: Link
    to_servers: Link


@pytest_asyncio.fixture
async def far_side(tmp_path: Path) -> AsyncIterator[FarSide]:
    """A stack whose `beside` is the broker's address in the other network."""
    with contextlib.ExitStack() as resources:
        try:
            environment, (to_kafka, to_servers) = resources.enter_context(namespace(links=2))
        except CannotIsolate as error:
            pytest.skip(f"no network namespaces: {error}")
        (port,) = free_ports(1)
        far = f"{to_kafka.address}:{port}"
        broker = resources.enter_context(listening_twice(tmp_path / "kafka", far, far))
        async with opened(RowStack(tmp_path, broker.bootstrap, beside=far)) as stack:
            yield FarSide(stack, environment, to_kafka, to_servers)


@pytest.mark.privileged
@pytest.mark.row("one of two aggregators in its own network, which drops every packet to and from")
@pytest.mark.parametrize("cut_from", ["kafka", "model-server"])
async def test_a_partition_of_the_network_splits_nothing(far_side: FarSide, figures: Figures, cut_from: str) -> None:
    stack = far_side.stack
    (port,) = free_ports(1)
    await stack.server(GRPC__BIND=f"0.0.0.0:{port}")
    server = f"{far_side.to_servers.address}:{port}"
    module = "tests.faults.network_namespace"
    isolated = await stack.aggregator(server, module=module, environment=far_side.environment, ready=False)
    async with stack.under_load(200):  # it is answered, so the one in its own network is at work
        stack.beside = ""
        await stack.aggregator(server)
        link = far_side.to_kafka if cut_from == "kafka" else far_side.to_servers
        async with stack.fault():
            link.cut()
            await asyncio.sleep(20.0)  # the fault itself
            link.mend()
        await stack.answers(2000)
        assert isolated.exit_code is None
    await stack.passes(figures)


@pytest.mark.row("one of two model servers cut off from the aggregator, then 200 ms away")
async def test_a_cut_from_a_model_server_is_got_round(stack: RowStack, figures: Figures) -> None:
    near, far = [await stack.server() for _ in range(2)]
    async with Relay(port_of(far.address)) as relay:
        await stack.aggregator(near.address, relay.address)
        async with stack.under_load(200):
            async with stack.fault():
                relay.cut()
                await asyncio.sleep(20.0)  # the fault itself
                relay.mend()
            await stack.answers(1000)
            relay.delay_s = 0.2
            await stack.answers(1000)
            relay.delay_s = 0.0
        verdict = figures.take(await stack.verdict())
    assert verdict.problems == ()
