"""A server that hangs, answers garbage or is another's is ejected, and returns; no caller sees an error."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from loadtest.stack.service import ModelServer
from tests.integration.pool.conftest import NewSickServer, Pool, SickServer, Traffic, Watched, more, traffic
from tests.integration.pool.sick_modelserver import NOT_FINITE, OF_ANOTHER_MODEL
from tests.support.processes import NewServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WITHDREW, JOINED, LEFT_OUT = "withdrew a model server", "joined a model server", "left out a model server"
SOON_S = 10.0
"""Within which a server that is well takes part: in half of it where the machine does nothing else."""


@asynccontextmanager
async def traffic_over(
    pool: Pool, steady: ModelServer | SickServer, other: ModelServer | SickServer
) -> AsyncGenerator[tuple[Watched, Traffic]]:
    """Callers of an aggregator that both servers have joined; none of them sees an error."""
    for server in (steady, other):
        server.start()
    aggregator = pool(steady.address, other.address)
    for server in (steady, other):
        await aggregator.told(JOINED, server.address)
    async with traffic(aggregator.address) as seen:
        await more(seen)  # both have shown how fast they are
        yield aggregator, seen
        await more(seen)
    seen.check()


async def test_a_server_that_hangs_is_missed_by_nobody_and_returns(new_server: NewServer, pool: Pool) -> None:
    hanging = new_server()
    async with traffic_over(pool, new_server(), hanging) as (aggregator, seen):
        hanging.pause()
        try:
            assert await aggregator.told(WITHDREW, hanging.address) == "a batch failed there"
            await more(seen)
        finally:
            hanging.resume()
        await aggregator.told(JOINED, hanging.address, 2 * SOON_S)  # a probe of it may have hung, too


async def test_a_server_that_answers_garbage_is_believed_by_nobody_and_returns(
    new_sick_server: NewSickServer, pool: Pool
) -> None:
    sick = new_sick_server(NOT_FINITE)
    async with traffic_over(pool, new_sick_server(NOT_FINITE), sick) as (aggregator, seen):
        os.kill(sick.pid, signal.SIGUSR1)
        assert await aggregator.told(WITHDREW, sick.address) == "a batch failed there"
        await aggregator.told(LEFT_OUT, sick.address)  # the probe sees it, too
        await more(seen)
        os.kill(sick.pid, signal.SIGUSR2)
        await aggregator.told(JOINED, sick.address, SOON_S)


async def test_a_server_gets_nothing_while_its_model_or_tokenizer_is_another(
    new_sick_server: NewSickServer, pool: Pool
) -> None:
    steady, other = new_sick_server(OF_ANOTHER_MODEL), new_sick_server(OF_ANOTHER_MODEL, "--born-ill")
    for server in (steady, other):
        server.start()
    aggregator = pool(steady.address, other.address)
    async with traffic(aggregator.address) as seen:
        assert "it serves the model another" in await aggregator.told(LEFT_OUT, other.address)
        await more(seen)
        os.kill(other.pid, signal.SIGUSR2)
        await aggregator.told(JOINED, other.address, SOON_S)
        await more(seen)
    seen.check()
