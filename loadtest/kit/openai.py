"""Call a server that speaks OpenAI's embeddings API with many queries at a time, and account for each."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import numpy as np
from numpy.typing import NDArray

from loadtest.kit.tally import Answer, Tally
from loadtest.kit.traffic import closed_loop, open_loop


@dataclass(frozen=True, slots=True)
class OpenAIRun:
    """One run: `concurrency` requests at a time on connections that last, `per_call` queries in each.

    `due_s`: when each call is due, in seconds from the start, however many are unanswered.
    """

    url: str
    model: str
    concurrency: int = 16
    per_call: int = 1
    timeout_s: float = 60.0
    due_s: Sequence[float] = ()


async def run(texts: Sequence[str], tally: Tally, plan: OpenAIRun) -> None:
    """Send `texts` and record in `tally` what comes of each. Raises aiohttp.ClientError when one is not answered.

    Vectors are asked for as base64, as OpenAI's own client does: it costs less than numbers in JSON.
    """
    connector = aiohttp.TCPConnector(limit=0 if plan.due_s else plan.concurrency)
    timeout = aiohttp.ClientTimeout(total=plan.timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, raise_for_status=True) as session:

        async def call(numbers: range) -> None:
            wanted = {"model": plan.model, "input": [texts[number] for number in numbers]}
            tally.record_sent(numbers, time.monotonic())
            async with session.post(plan.url, json={**wanted, "encoding_format": "base64"}) as response:
                found = (await response.json())["data"]
            vectors = [_vector(each["embedding"]) for each in found]
            tally.record_answers(numbers, [Answer(0, vector) for vector in vectors], time.monotonic())

        if plan.due_s:
            await open_loop(plan.due_s, plan.per_call, call)
        else:
            await closed_loop(len(texts), plan.concurrency, plan.per_call, call)


def _vector(embedding: str | list[float]) -> NDArray[np.float32]:
    """Base64, or numbers from a server that knows no other format."""
    if isinstance(embedding, str):
        return np.frombuffer(b64decode(embedding), "<f4")
    return np.array(embedding, np.float32)
