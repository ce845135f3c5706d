"""Ask for many texts at a time, by gRPC or by OpenAI's API, and note when each part of each text came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp
import grpc.aio

from aggregator.errors import ungrouped
from loadtest.stack.errors import StackError
from protos.generation.v1 import generation_pb2 as pb
from protos.generation.v1 import generation_pb2_grpc as pb_grpc

_TIMEOUT_S = 300.0
_EVENT, _END = b"data: ", b"[DONE]"


@dataclass(frozen=True, slots=True)
class Asked:
    """One text: what it continues from, and its number of new tokens."""

    prompt: str
    tokens: int


@dataclass(slots=True)
class Heard:
    """What callers saw: seconds from asking to the first part, and from each part to the next; tokens of all texts."""

    first_s: list[float] = field(default_factory=list[float])
    between_s: list[float] = field(default_factory=list[float])
    tokens: int = 0


Parts = Callable[[Asked], AsyncIterator[tuple[bool, int]]]
"""Yields for each message of a text whether there is something new of it, and how many tokens it has, 0 if unsaid."""


async def over_grpc(address: str, asked: Sequence[Asked], callers: int, *, whole: bool = False) -> Heard:
    """From an aggregator; each text in one message if `whole`. Raises StackError when a text is not had."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.GenerationStub(channel)

        async def parts(one: Asked) -> AsyncIterator[tuple[bool, int]]:
            sampling = pb.Sampling(max_tokens=one.tokens, temperature=0.0, ignore_eos=True)
            request = pb.GenerateRequest(prompt=one.prompt, sampling=sampling, final_only=whole)
            async for response in stub.Generate(request, timeout=_TIMEOUT_S):
                yield True, response.usage.completion_tokens

        with _told(grpc.aio.AioRpcError):
            return await hear(parts, asked, callers)


async def over_http(url: str, model: str, asked: Sequence[Asked], callers: int, *, whole: bool = False) -> Heard:
    """The same from a server that speaks OpenAI's completions API."""
    connector = aiohttp.TCPConnector(limit=callers)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    streaming = {} if whole else {"stream": True, "stream_options": {"include_usage": True}}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, raise_for_status=True) as session:

        async def parts(one: Asked) -> AsyncIterator[tuple[bool, int]]:
            wanted = {"prompt": one.prompt, "max_tokens": one.tokens, "temperature": 0.0, "ignore_eos": True}
            async with session.post(url, json={"model": model, **wanted, **streaming}) as response:
                if whole:
                    yield True, (await response.json())["usage"]["completion_tokens"]
                    return
                async for line in response.content:
                    if line.startswith(_EVENT) and not line.startswith(_END, len(_EVENT)):
                        part = json.loads(line[len(_EVENT) :])
                        yield bool(part["choices"]), (part.get("usage") or {}).get("completion_tokens", 0)

        with _told(aiohttp.ClientError, TimeoutError):
            return await hear(parts, asked, callers)


async def hear(parts: Parts, asked: Sequence[Asked], callers: int) -> Heard:
    """All texts, `callers` at a time. Raises StackError when one has another number of tokens than requested."""
    heard = Heard()
    left = iter(asked)

    async def call_on() -> None:
        for one in left:
            await _hear_one(parts, one, heard)

    with ungrouped(StackError):
        async with asyncio.TaskGroup() as tasks:
            for caller in range(callers):
                tasks.create_task(call_on(), name=f"caller-{caller}")
    return heard


async def _hear_one(parts: Parts, one: Asked, heard: Heard) -> None:
    began_s = time.monotonic()
    last_s, tokens = 0.0, 0
    async for new, known in parts(one):
        now_s = time.monotonic()
        if new and not last_s:
            heard.first_s.append(now_s - began_s)
        elif new:
            heard.between_s.append(now_s - last_s)
        last_s, tokens = now_s, tokens or known
    if tokens != one.tokens:
        raise StackError(f"a text has {tokens} tokens, not the {one.tokens} that it was asked for")
    heard.tokens += tokens


@contextmanager
def _told(*kinds: type[Exception]) -> Generator[None]:
    """What is raised because a text was not had, in words."""
    try:
        with ungrouped(*kinds):
            yield
    except kinds as error:
        raise StackError(f"a text was not generated: {error!r}") from error
