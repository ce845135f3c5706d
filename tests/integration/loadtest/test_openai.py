"""The client that measures vLLM's own server, against a server that answers as each test says."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import ClientResponseError, web

from loadtest.clients import openai
from loadtest.clients.openai import OpenAIRun
from loadtest.tally import Tally


@asynccontextmanager
async def serving(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncGenerator[str]:
    application = web.Application()
    application.router.add_post("/v1/embeddings", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/embeddings"
    finally:
        await runner.cleanup()


async def test_every_text_comes_back_with_its_vector_and_no_more_are_asked_at_once() -> None:
    under_way = most = 0
    three = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if most == 3:
            three.set()
        await three.wait()
        asked = await request.json()
        await asyncio.sleep(0.01)
        under_way -= 1
        assert (asked["model"], asked["encoding_format"]) == ("minilm", "base64")
        vectors = [np.array([len(text), 1], "<f4").tobytes() for text in asked["input"]]
        return web.json_response({"data": [{"embedding": b64encode(vector).decode()} for vector in vectors]})

    tally = Tally(np.arange(20, dtype=np.int64))
    async with serving(answer) as url:
        texts = ["x" * length for length in range(1, 21)]
        await openai.run(texts, tally, OpenAIRun(url, "minilm", concurrency=3, per_call=2))
    assert most == 3
    assert tally.embeddings()[:, 0].tolist() == list(range(1, 21))
    assert tally.summary().lost == 0


async def test_a_request_that_is_not_answered_ends_the_run() -> None:
    async def answer(request: web.Request) -> web.Response:
        del request
        return web.Response(status=500)

    async with serving(answer) as url:
        with pytest.raises(ExceptionGroup) as caught:
            await openai.run(["x"], Tally(np.arange(1, dtype=np.int64)), OpenAIRun(url, "minilm"))
    assert caught.group_contains(ClientResponseError)
