"""A neighbour of callers who send all they can waits hardly longer than beside a flood of somebody else's server."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.integration.frontdoor.http_floods import CALL, FLOODS, flooded
from tests.integration.frontdoor.test_http import http_door

CALLS = 20
MARGIN_S = 0.15
"""What a flood may add to the processor time of an answer: other work on the machine costs none of it."""


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_from_four_connections_holds_up_no_neighbour(kind: str) -> None:
    async with http_door() as (door, _):
        await answered_s(door.http)
        async with unrelated_server() as other, flooded(other, kind, connections=4):
            control_s = await answered_s(door.http)
        async with flooded(door.http, kind, connections=4):
            beside_s = await answered_s(door.http)
    assert beside_s <= control_s + MARGIN_S


async def answered_s(address: str) -> float:
    """The median time that this thread, the server's too, computes until a call on a new connection is answered."""
    host, _, port = address.rpartition(":")
    times: list[float] = []
    for _ in range(CALLS):
        began_s = time.thread_time()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(CALL)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        times.append(time.thread_time() - began_s)
        writer.close()
    return statistics.median(times)


@asynccontextmanager
async def unrelated_server() -> AsyncGenerator[str]:
    """The address of a process that reads whatever comes, and answers each piece of it."""
    program = (sys.executable, "-m", "tests.integration.frontdoor.http_floods", "server")
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()
