"""A server that is killed, hangs, answers garbage or is another's is ejected, and returns; no caller sees an error."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.integration.pool.conftest import NewServer, NewSickServer, Pool, more, traffic
from tests.integration.pool.sick_modelserver import GARBAGE, IMPOSTURES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WITHDREW, JOINED, LEFT_OUT = "withdrew a model server", "joined a model server", "left out a model server"
SOON_S = 10.0
"""Within which a server that is well takes part: in half of it where the machine does nothing else."""


async def test_a_server_that_is_killed_is_missed_by_nobody_and_returns(new_server: NewServer, pool: Pool) -> None:
    steady, mortal = new_server(), new_server()
    for server in (steady, mortal):
        server.start()
    aggregator = pool(steady.address, mortal.address)
    for server in (steady, mortal):
        await aggregator.told(JOINED, server.address)
    async with traffic(aggregator.address) as seen:
        mortal.kill()
        await aggregator.told(WITHDREW, mortal.address)
        await more(seen)
        await asyncio.to_thread(mortal.start)
        await aggregator.told(JOINED, mortal.address, SOON_S)
        await more(seen)
    seen.check()


async def test_a_server_that_hangs_is_missed_by_nobody_and_returns(new_server: NewServer, pool: Pool) -> None:
    steady, hanging = new_server(), new_server()
    for server in (steady, hanging):
        server.start()
    aggregator = pool(steady.address, hanging.address)
    for server in (steady, hanging):
        await aggregator.told(JOINED, server.address)
    async with traffic(aggregator.address) as seen:
        await more(seen)  # both have shown how fast they are
        hanging.pause()
        try:
            assert await aggregator.told(WITHDREW, hanging.address) == "a batch failed there"
            await more(seen)
        finally:
            hanging.resume()
        await aggregator.told(JOINED, hanging.address, 2 * SOON_S)  # a probe of it may have hung, too
        await more(seen)
    seen.check()


@pytest.mark.parametrize("illness", GARBAGE)
async def test_a_server_that_answers_garbage_is_believed_by_nobody_and_returns(
    illness: str, new_sick_server: NewSickServer, pool: Pool
) -> None:
    steady, steady_address = new_sick_server(illness)
    sick, sick_address = new_sick_server(illness)
    for server in (steady, sick):
        server.start()
    aggregator = pool(steady_address, sick_address)
    for address in (steady_address, sick_address):
        await aggregator.told(JOINED, address)
    async with traffic(aggregator.address) as seen:
        await more(seen)
        os.kill(sick.pid, signal.SIGUSR1)
        assert await aggregator.told(WITHDREW, sick_address) == "a batch failed there"
        await aggregator.told(LEFT_OUT, sick_address)  # the probe sees it, too
        await more(seen)
        os.kill(sick.pid, signal.SIGUSR2)
        await aggregator.told(JOINED, sick_address, SOON_S)
        await more(seen)
    seen.check()


@pytest.mark.parametrize("illness", IMPOSTURES)
async def test_a_server_of_another_model_or_tokenizer_gets_nothing_until_it_is_the_right_one(
    illness: str, new_sick_server: NewSickServer, pool: Pool
) -> None:
    steady, steady_address = new_sick_server(illness)
    other, other_address = new_sick_server(illness, "--born-ill")
    for server in (steady, other):
        server.start()
    aggregator = pool(steady_address, other_address)
    async with traffic(aggregator.address) as seen:
        assert IMPOSTURES[illness][1] in await aggregator.told(LEFT_OUT, other_address)
        await more(seen)
        os.kill(other.pid, signal.SIGUSR2)
        await aggregator.told(JOINED, other_address, SOON_S)
        await more(seen)
    seen.check()
