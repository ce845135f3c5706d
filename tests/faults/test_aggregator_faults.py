"""Aggregators are killed, frozen, stopped and multiplied under load: what they leave, others take up."""

from __future__ import annotations

import asyncio
import json
import random
import time

import pytest

from loadtest.stack.service import DEFAULT_MODEL_NAME, ModelServer
from protos.embedding.v1 import embedding_pb2 as pb
from tests.faults.expected import DIMENSIONS
from tests.faults.row_stack import RowStack, Variant
from tests.faults.rows import Figures
from tests.faults.steady_load import Intent, Planned, question
from tests.support.kafka_client import Sent, query

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]


def kills(*counts: int) -> pytest.MarkDecorator:
    """The fewest are for the short selection."""
    few, *more = counts
    return pytest.mark.parametrize("count", [pytest.param(few, marks=pytest.mark.short), *more])


@pytest.mark.row("aggregator killed (SIGKILL) at random moments")
@kills(3, 20)
async def test_killed_aggregators_lose_nothing(stack: RowStack, figures: Figures, count: int) -> None:
    chance = random.Random(count)
    await stack.server()
    members = [await stack.aggregator() for _ in range(2)]
    async with stack.fault_under_load(150, then=500):
        for number in range(count):
            victim = members[number % 2]
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            await stack.kill_and_start(victim)
    await stack.passes(figures, kills=count)


def expiring(number: int, request_id: str) -> Planned:
    """A question that expires three seconds after it was sent."""
    text = question(number, request_id).intent.text or ""
    message = pb.EmbedRequest(request_id=request_id, inputs=[pb.Input(text=text)])
    message.expire_time.FromNanoseconds(int((time.time() + 3.0) * 1e9))
    intent = Intent(text, codes=frozenset({"OK", "DEADLINE_EXCEEDED"}))
    return Planned(Sent(message.SerializeToString(), key=request_id.encode()), intent)


@pytest.mark.row(
    "aggregators killed (SIGKILL) while a record holds each partition's commit back, requests that expire in 3 s"
)
async def test_a_replay_is_not_decided_by_the_clock(stack: RowStack, figures: Figures) -> None:
    chance = random.Random(6)
    server, away = await stack.server(), absent(stack)
    members = [await stack.aggregator(settings=models(away, server)) for _ in range(2)]
    async with stack.under_load(300, expiring), stack.fault():
        await hold_commits(stack)
        for number in range(4):
            await stack.answers(600)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            await stack.kill_and_start(members[number % 2])
        await stack.answers(600)
        await asyncio.to_thread(away.start)
    await passes_alike(stack, figures)


@pytest.mark.row(
    "aggregators killed (SIGKILL) while another revision of the model takes over, and commits are held back"
)
async def test_a_replay_goes_to_the_revision_that_answered_it(stack: RowStack, figures: Figures) -> None:
    chance = random.Random(7)
    old, away = await stack.server(MODEL__REVISION="old"), absent(stack)
    new = [await stack.server(MODEL__REVISION="new") for _ in range(2)]
    before = await stack.aggregator(settings=models(away, old))
    async with stack.under_load(300), stack.fault():
        await hold_commits(stack)
        await stack.answers(900)
        stack.kill(before)
        members = [await stack.aggregator(settings=models(away, old, *new)) for _ in range(2)]
        for number in range(3):
            await stack.answers(600)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            await stack.kill_and_start(members[number % 2])
        await stack.answers(600)
        await asyncio.to_thread(away.start)
    await passes_alike(stack, figures)


async def passes_alike(stack: RowStack, figures: Figures) -> None:
    verdict = await stack.passes(figures)
    assert verdict.duplicates > 1000
    assert stack.replays.known > 500, "Others were answered behind the last commit before a kill."


def absent(stack: RowStack) -> ModelServer:
    """The server of the model `away`, not started."""
    settings = {
        "ENGINE__KIND": "synthetic",
        "PROFILE__ENABLED": "false",
        "MODEL__NAME": "away",
        "SYNTHETIC__DIMENSIONS": str(DIMENSIONS),
    }
    server = ModelServer(stack.folder / "away.log", settings=settings)
    stack.servers.append(server)
    return server


def models(away: ModelServer, *servers: ModelServer) -> dict[str, str]:
    """An aggregator's settings."""
    named = [
        {"name": DEFAULT_MODEL_NAME, "servers": [server.address for server in servers]},
        {"name": "away", "servers": [away.address]},
    ]
    return {"MODELS": json.dumps(named)}


async def hold_commits(stack: RowStack) -> None:
    """A record in each partition that waits until its model's server is there."""

    def waiting(number: int, request_id: str) -> Planned:
        text = f"wait for it {number}"
        return Planned(query(text, request_id, model="away"), Intent(text))

    for partition in range(stack.partitions):
        await stack.load.send(1, waiting, partition=partition)


@pytest.mark.row("aggregator frozen (SIGSTOP) until the group has reassigned its partitions, then resumed")
@pytest.mark.parametrize("frozen_s", [pytest.param(10.0, marks=pytest.mark.short), 60.0])
async def test_a_zombie_commits_nothing(stack: RowStack, figures: Figures, frozen_s: float) -> None:
    await stack.server()
    zombie, _ = [await stack.aggregator() for _ in range(2)]
    async with stack.fault_under_load(150, then=500):
        zombie.pause()
        await asyncio.sleep(frozen_s)  # the fault itself
        zombie.resume()
    verdict = await stack.passes(figures, frozen_s=frozen_s)
    assert verdict.duplicates_share < 0.2


@pytest.mark.row("SIGTERM under full load")
async def test_a_stop_under_full_load_answers_nothing_twice(stack: RowStack, figures: Figures) -> None:
    await stack.server(SYNTHETIC__FIXED_S="0.05")  # some 400 queries a second: fewer than are sent
    first = await stack.aggregator()
    async with stack.under_load(450):
        second = await stack.aggregator()
        async with stack.fault():
            began_s = time.monotonic()
            assert await stack.stop(first) == [0]
            stopped_s = time.monotonic() - began_s
        await stack.answers(600)
    verdict = await stack.passes(figures, stopped_s=round(stopped_s, 2))
    assert verdict.duplicates == 0
    assert stopped_s < 25.0
    assert second.exit_code == 0


@pytest.mark.row("rolling restart of 4 aggregators")
async def test_a_rolling_restart_is_hardly_noticed(stack: RowStack, figures: Figures) -> None:
    await stack.server()
    members = [await stack.aggregator() for _ in range(4)]
    async with stack.fault_under_load(200, then=1000):
        for member in members:
            assert await stack.stop(member) == [0]
            await stack.start(member)
            await stack.answers(200)
    verdict = await stack.passes(figures)
    assert verdict.duplicates_share < 0.005
    assert verdict.gap_s < 5.0


@pytest.mark.row("rebalance storm: a member joins or leaves every 3 s")
@pytest.mark.parametrize("storm_s", [30.0, 180.0])
async def test_a_rebalance_storm_stops_no_partition(stack: RowStack, figures: Figures, storm_s: float) -> None:
    await stack.server()
    await stack.aggregator()
    changes = 0
    async with stack.fault_under_load(200, then=1000):
        ends_s = time.monotonic() + storm_s
        guest: Variant | None = None
        while time.monotonic() < ends_s:
            due_s = time.monotonic() + 3.0
            if guest is None:
                guest = await stack.aggregator(ready=False)
            else:
                await stack.stop(guest)
                guest = None
            changes += 1
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    verdict = await stack.passes(figures, changes=changes)
    assert verdict.recovery_s < 30.0
