"""Call a server that speaks OpenAI's embeddings API with many queries at a time, and account for each."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import numpy as np
from numpy.typing import NDArray

from aggregator.errors import ungrouped
from loadtest.clients.grpc import Seconds
from loadtest.clients.pace import paced
from loadtest.tally import Answer, Tally


@dataclass(frozen=True, slots=True)
class OpenAIRun:
    """One run: `concurrency` requests at a time on connections that last, `per_call` queries in each."""

    url: str
    model: str
    concurrency: int = 16
    per_call: int = 1
    timeout_s: float = 60.0


async def run(texts: Sequence[str], tally: Tally, plan: OpenAIRun) -> None:
    """Send `texts` and record in `tally` what comes of each. Raises aiohttp.ClientError when one is not answered.

    Vectors are asked for as base64, as OpenAI's own client does: it costs less than numbers in JSON.
    """
    connector = aiohttp.TCPConnector(limit=plan.concurrency)
    timeout = aiohttp.ClientTimeout(total=plan.timeout_s)
    starts = iter(range(0, len(texts), plan.per_call))
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, raise_for_status=True) as session:

        async def call_on() -> None:
            for start in starts:
                numbers = range(start, min(start + plan.per_call, len(texts)))
                wanted = {"model": plan.model, "input": [texts[number] for number in numbers]}
                sent_s = time.monotonic()
                for number in numbers:
                    tally.record_sent(number, sent_s)
                async with session.post(plan.url, json={**wanted, "encoding_format": "base64"}) as response:
                    found = (await response.json())["data"]
                vectors = [_vector(each["embedding"]) for each in found]
                tally.record_answers(numbers, [Answer(0, vector) for vector in vectors], time.monotonic())

        async with asyncio.TaskGroup() as tasks:
            for worker in range(plan.concurrency):
                tasks.create_task(call_on(), name=f"caller-{worker}")


def _vector(embedding: str | list[float]) -> NDArray[np.float32]:
    """Base64, or numbers from a server that knows no other format."""
    if isinstance(embedding, str):
        return np.frombuffer(b64decode(embedding), "<f4")
    return np.array(embedding, np.float32)


async def at_rate(url: str, model: str, texts: Sequence[str], per_s: float) -> tuple[Seconds, Seconds]:
    """Call at a fixed rate, whether or not earlier calls are answered; seconds from the start to each, and of each.

    Raises aiohttp.ClientError when one is not answered.
    """
    sent_s, latency_s = np.zeros(len(texts)), np.zeros(len(texts))
    with ungrouped(aiohttp.ClientError):
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), raise_for_status=True) as session,
            asyncio.TaskGroup() as tasks,
        ):
            began_s = time.monotonic()

            async def one(number: int) -> None:
                called_s = time.monotonic()
                wanted = {"model": model, "input": texts[number], "encoding_format": "base64"}
                async with session.post(url, json=wanted) as response:
                    await response.read()
                sent_s[number], latency_s[number] = called_s - began_s, time.monotonic() - called_s

            async for numbers in paced(len(texts), per_s, 1):
                tasks.create_task(one(numbers.start))
    return sent_s, latency_s
