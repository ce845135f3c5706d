"""The retries of OpenAI's own client bring every call through an overload, and through the loss of a model server."""

from __future__ import annotations

import asyncio

import pytest

from aggregator.admission import models
from aggregator.errors import ModelServerLost
from loadtest.stack.part import python_of
from tests.integration.frontdoor.test_http import http_door
from tests.support.listening import Listening, slow_engine

pytestmark = pytest.mark.timeout(600)  # what is downloaded the first time

CALLS = 40
CLIENT = """
import asyncio, sys
from openai import AsyncOpenAI

async def main(url, calls):
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=10)
    answers = [client.embeddings.create(model="minilm", input=f"a b c {number}") for number in range(calls)]
    print(sum(len(answer.data) for answer in await asyncio.gather(*answers)))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def answered(door: Listening) -> int:
    """How many of CALLS calls at once get a vector."""
    command = [str(python_of("clients")), "-c", CLIENT, f"http://{door.http}/v1", str(CALLS)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    written, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return int(written)


async def test_429_is_tried_again_when_the_server_says() -> None:
    async with http_door(slow_engine(slowness=50), max_held_tokens=60) as (door, _):
        assert await answered(door) == CALLS
        assert door.figure("tokenbatch.http.responses", status="429") > 0
        assert door.figure("tokenbatch.http.responses", status="200") == CALLS


async def test_503_is_tried_again_until_there_is_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "CALLS_WAIT_S", 0.1)
    engine = slow_engine(slowness=50)
    engine.failures.append(ModelServerLost("it went away"))  # and comes back a second later
    async with http_door(engine) as (door, _):
        assert await answered(door) == CALLS
        assert door.figure("tokenbatch.http.responses", status="503") > 0
        assert door.figure("tokenbatch.http.responses", status="200") == CALLS
