"""Aggregators, model servers and Redis are killed under load: every entry has one outcome, and its reply comes first.

FAULTS_REDIS_S is the seconds of the long row, FAULTS_SEED the seed of its faults.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.faults.aggregator.wings.redis.log import Ledger
from tests.faults.aggregator.wings.redis.stack import RedisStack, opened
from tests.faults.rows import Figures
from tests.faults.steady_load import Intent

pytestmark = [pytest.mark.redis, pytest.mark.slow]

LONG_S = float(os.environ.get("FAULTS_REDIS_S", "600"))
SEED = int(os.environ.get("FAULTS_SEED", "1"))


@pytest.mark.row("Redis, aggregators and model servers killed (SIGKILL) at random moments, entries in Redis")
@pytest.mark.timeout(LONG_S + 400)
@pytest.mark.parametrize("fault_s", [pytest.param(12.0, marks=pytest.mark.short), LONG_S])
async def test_killed_parts_lose_no_entry(tmp_path: Path, figures: Figures, fault_s: float) -> None:
    chance = random.Random(SEED)
    async with opened(tmp_path) as stack:
        for _ in range(2):
            await stack.add_model_server()
        for _ in range(2):
            await stack.add_aggregator()
        faults = {"redis": kill_redis, "aggregator": kill_an_aggregator, "model server": kill_a_model_server}
        rest: list[str] = []
        done: list[str] = []
        async with stack.under_load(200):
            stack.line.fault_ms = time.time() * 1000
            ends_s = time.monotonic() + fault_s
            while time.monotonic() < ends_s or len(done) < len(faults):
                rest = rest or chance.sample(sorted(faults), len(faults))
                done.append(rest.pop())
                await faults[done[-1]](stack, chance)
                await asyncio.sleep(chance.uniform(0.0, 2.0))  # some come soon after one another
            stack.line.healed_ms = time.time() * 1000
            await stack.answers(500)
        verdict = figures.take(await stack.verdict(), kills=len(done), seed=SEED)
    assert verdict.problems == (), done


Fault = Callable[[RedisStack, random.Random], Awaitable[None]]


async def kill_redis(stack: RedisStack, chance: random.Random) -> None:
    """It is away for a while, and comes back with its file."""
    await asyncio.to_thread(stack.server.kill)
    await asyncio.sleep(chance.uniform(0.0, 2.0))  # the fault itself
    await asyncio.to_thread(stack.server.start)


async def kill_an_aggregator(stack: RedisStack, chance: random.Random) -> None:
    """Another takes over the entries that it claimed."""
    victim = chance.choice(stack.aggregators)
    victim.kill()
    await stack.start(victim)


async def kill_a_model_server(stack: RedisStack, chance: random.Random) -> None:
    """The other one serves."""
    victim = chance.choice(stack.model_servers)
    victim.kill()
    await asyncio.sleep(chance.uniform(0.0, 2.0))  # the fault itself
    await asyncio.to_thread(victim.start)


def test_the_checker_finds_lost_early_acknowledged_and_wrong_entries() -> None:
    request = b"\x0a\x02q1\x1a\x03\x0a\x01a"
    ledger = Ledger({b"q1": Intent("a")}, "g", stream="in", replies="out")
    ledger.take([b"XADD", b"in", b"1-0", b"value", request])
    ledger.take([b"XADD", b"in", b"2-0", b"value", request])
    ledger.take([b"XACK", b"in", b"g", b"2-0"])
    ledger.take([b"XADD", b"out", b"MAXLEN", b"~", b"9", b"3-0", b"value", b"", b"content-type", b"x"])
    assert ledger.lost == [b"1-0", b"2-0"]
    assert ledger.early == 1
    assert len(ledger.wrong) == 1
