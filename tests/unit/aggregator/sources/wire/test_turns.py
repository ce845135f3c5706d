"""Replies to many requests are written in their order, in short turns of the event loop."""

from __future__ import annotations

import asyncio
from threading import current_thread, main_thread

import pytest

from aggregator.request.request import Request
from aggregator.sources.wire.turns import encoded
from aggregator.wings.generation.generation import Generation, logprobs_of
from aggregator.wings.generation.kind import GENERATION
from protos.generation.v1.generation_pb2 import Sampling
from tests.support.fake_source import any_request


async def written(requests: list[Request], *, as_json: bool) -> tuple[list[bool], int]:
    """Whether each reply was written on the event loop's thread, and the turns that others had meanwhile."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(take_turns())

    def write(request: Request) -> tuple[Request, bool]:
        return request, current_thread() is main_thread()

    found = await encoded(requests, write, [as_json] * len(requests))
    others.cancel()
    assert [request for request, _ in found] == requests
    return [is_here for _, is_here in found], turns


async def test_few_replies_are_written_in_one_turn() -> None:
    assert await written([any_request("a")] * 200, as_json=False) == ([True] * 200, 0)
    assert await written([any_request("a")] * 16, as_json=True) == ([True] * 16, 0)


@pytest.mark.parametrize(("as_json", "turns"), [(False, 2), (True, 61)])
async def test_others_have_their_turns_between_many_replies(turns: int, *, as_json: bool) -> None:
    is_here, others = await written([any_request("a")] * 1000, as_json=as_json)
    assert all(is_here)
    assert others >= turns


@pytest.mark.parametrize(("inputs", "as_json", "is_here"), [(16, True, True), (17, True, False), (2048, False, False)])
async def test_a_long_reply_is_written_on_a_thread(inputs: int, is_here: bool, *, as_json: bool) -> None:
    short, long = any_request("a"), any_request(*["a"] * inputs)
    found, _ = await written([short, long, short], as_json=as_json)
    assert found == [True, is_here, True]


async def test_a_text_with_many_logarithms_is_long() -> None:
    def text(tokens: int) -> Request:
        generation = Generation(Sampling(max_tokens=tokens, logprobs=20))
        generation.logprobs += logprobs_of(21, [6] * tokens * 21, [-1.5] * tokens * 21, [1] * tokens)
        return any_request("a", kind=GENERATION, details=generation)

    assert await written([text(5)], as_json=True) == ([True], 0)
    assert (await written([text(7)], as_json=True))[0] == [False]
    assert await written([text(50)], as_json=False) == ([True], 0)
    assert (await written([text(100)], as_json=False))[0] == [False]
