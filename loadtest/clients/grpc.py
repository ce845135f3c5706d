"""Call the gRPC front door with many queries at a time, and account for each."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import numpy as np
import numpy.typing as npt

from aggregator.errors import ungrouped
from loadtest.clients.messages import NO_WISHES, Wishes, answers, request
from loadtest.clients.pace import paced
from loadtest.tally import Answer, Tally
from protos.embedding.v1 import embedding_pb2_grpc

Seconds = npt.NDArray[np.float64]
_MAX_REPLY_BYTES = 256 * 1024 * 1024


class GrpcRunError(Exception):
    """The target cannot be reached."""


@dataclass(frozen=True, slots=True)
class GrpcRun:
    """One run's way through gRPC: `concurrency` requests at a time, `per_call` queries in each."""

    target: str
    concurrency: int = 16
    per_call: int = 1
    wishes: Wishes = NO_WISHES
    timeout_s: float = 60.0


@asynccontextmanager
async def connected(plan: GrpcRun) -> AsyncGenerator[grpc.aio.Channel]:
    """A channel to the target. Raises GrpcRunError when that cannot be reached."""
    options = [("grpc.max_receive_message_length", _MAX_REPLY_BYTES)]
    async with grpc.aio.insecure_channel(plan.target, options=options) as channel:
        try:
            await asyncio.wait_for(channel.channel_ready(), min(plan.timeout_s, 10.0))
        except TimeoutError:
            raise GrpcRunError(f"nothing answers gRPC at {plan.target}") from None
        yield channel


async def run(texts: Sequence[str], tally: Tally, plan: GrpcRun, on_progress: Callable[[], None]) -> None:
    """Send `texts` by unary calls and record in `tally` what comes of each; `on_progress` is called after every call.

    A call that fails gives its code to all its queries. Raises GrpcRunError when the target cannot be reached.
    """
    async with connected(plan) as channel:
        caller = _Caller(embedding_pb2_grpc.EmbeddingsStub(channel), tally, plan)
        starts = iter(range(0, len(texts), plan.per_call))

        async def call_on() -> None:
            for start in starts:
                await caller.call(range(start, min(start + plan.per_call, len(texts))), texts)
                on_progress()

        async with asyncio.TaskGroup() as tasks:
            for worker in range(plan.concurrency):
                tasks.create_task(call_on(), name=f"caller-{worker}")


async def at_rate(target: str, texts: Sequence[str], per_s: float, per_call: int = 1) -> tuple[Seconds, Seconds]:
    """Call at a fixed rate, whether or not earlier calls are answered; seconds from the start to each, and of each.

    Raises GrpcRunError when the target cannot be reached, AioRpcError when a call fails.
    """
    plan = GrpcRun(target)
    count = len(texts) // per_call
    sent_s, latency_s = np.zeros(count), np.zeros(count)
    with ungrouped(grpc.aio.AioRpcError):
        async with connected(plan) as channel, asyncio.TaskGroup() as tasks:
            stub = embedding_pb2_grpc.EmbeddingsStub(channel)
            began_s = time.monotonic()

            async def one(number: int) -> None:
                called_s = time.monotonic()
                asked = request(list(texts[number * per_call : (number + 1) * per_call]), str(number), NO_WISHES)
                await stub.Embed(asked, timeout=plan.timeout_s)
                sent_s[number], latency_s[number] = called_s - began_s, time.monotonic() - called_s

            async for numbers in paced(count, per_s, 1):
                tasks.create_task(one(numbers.start))
    return sent_s, latency_s


class _Caller:
    """Makes one call after the other."""

    def __init__(self, stub: embedding_pb2_grpc.EmbeddingsAsyncStub, tally: Tally, plan: GrpcRun) -> None:
        self._stub = stub
        self._tally = tally
        self._plan = plan
        self._run_id = secrets.token_hex(4)

    async def call(self, numbers: range, texts: Sequence[str]) -> None:
        """One call with the queries of these numbers."""
        request_id = f"{self._run_id}-{numbers.start}"
        message = request([texts[number] for number in numbers], request_id, self._plan.wishes)
        sent_s = time.monotonic()
        for number in numbers:
            self._tally.record_sent(number, sent_s)
        try:
            response = await self._stub.Embed(message, timeout=self._plan.timeout_s)
        except grpc.aio.AioRpcError as error:
            code: int = error.code().value[0]
            self._tally.record_answers(numbers, [Answer(code)] * len(numbers), time.monotonic())
            return
        self._tally.mismatched += response.request_id != request_id
        self._tally.record_answers(numbers, answers(response), time.monotonic())
