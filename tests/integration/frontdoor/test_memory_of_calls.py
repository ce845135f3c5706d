"""What callers hold is what has come and what will be written: nobody keeps room by words alone."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

from aggregator.observability.metrics import Limit
from tests.integration.frontdoor.test_http import embed, http_door
from tests.integration.frontdoor.test_http_hostile import HEAD, answer, connected
from tests.support.until import until

MIB = 1024 * 1024


async def test_bodies_that_are_announced_hold_no_room_from_anybody() -> None:
    async with http_door(memory_bytes=2 * MIB) as (door, session), AsyncExitStack() as connections:
        for _ in range(20):
            _, writer = await connections.enter_async_context(connected(door.http))
            writer.write(HEAD + b"content-length: 4194304\r\n\r\n{")
        for _ in range(10):
            assert (await embed(session, {"input": "rain"}))[0] == 200
        assert door.figure("tokenbatch.calls.held") < 100


async def test_the_body_that_arrives_slowest_ends_where_all_is_held() -> None:
    async with http_door(memory_bytes=MIB) as (door, _), AsyncExitStack() as connections:
        readers: list[asyncio.StreamReader] = []
        for _ in range(3):
            reader, writer = await connections.enter_async_context(connected(door.http))
            writer.write(HEAD + b"content-length: 4000000\r\n\r\n" + b" " * 310_000)
            readers.append(reader)
        await until(lambda: door.figure("tokenbatch.calls.held") > 900_000)
        await asyncio.sleep(0.5)  # so long nothing comes of them
        reader, writer = await connections.enter_async_context(connected(door.http))
        large = json.dumps({"input": "rain" + " " * 300_000}).encode()
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(large) + large)
        assert (await answer(reader))[0] != 429
        assert door.figure("tokenbatch.calls.refused", limit=Limit.SLOW) >= 1
        statuses = [(await answer(each))[0] for each in readers]
        assert sorted(statuses) == [408, 408, 429]


async def test_an_answer_that_could_never_be_held_is_refused_by_its_size() -> None:
    async with http_door(memory_bytes=MIB) as (_, session):
        status, body, _ = await embed(session, {"input": ["rain"] * 1000})
        assert status == 400
        assert "bytes of memory: at most 838860 are taken; ask for fewer inputs" in body["error"]["message"]
        assert (await embed(session, {"input": "rain"}))[0] == 200
