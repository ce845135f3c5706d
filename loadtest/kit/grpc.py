"""Call the gRPC front door with many queries at a time, and account for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tokenbatch_client import AsyncClient, DeadlineExceeded, TokenbatchError, Unavailable

from loadtest.kit.tally import Tally, answer_of, code_of
from loadtest.kit.traffic import closed_loop, open_loop

_CONNECT_S = 10.0


class GrpcRunError(Exception):
    """The target cannot be reached."""


@dataclass(frozen=True, slots=True)
class GrpcRun:
    """One run's way through gRPC: `concurrency` requests at a time, `per_call` queries in each.

    `options`: the client package's, of every request. `stream`: all on one EmbedStream instead of a call each.
    `due_s`: when each call is due, in seconds from the start, however many are unanswered.
    """

    target: str
    concurrency: int = 16
    per_call: int = 1
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    timeout_s: float = 60.0
    stream: bool = False
    due_s: Sequence[float] = ()


@asynccontextmanager
async def connected(plan: GrpcRun) -> AsyncGenerator[AsyncClient]:
    """A client that tries each call once. Raises GrpcRunError when the target cannot be reached."""
    async with AsyncClient(plan.target, timeout_s=plan.timeout_s) as probe:
        try:
            await probe.models(timeout_s=min(plan.timeout_s, _CONNECT_S))
        except (Unavailable, DeadlineExceeded):
            raise GrpcRunError(f"nothing answers gRPC at {plan.target}") from None
        except TokenbatchError:
            pass  # it answered
    async with AsyncClient(plan.target, timeout_s=plan.timeout_s, retry=False) as client:
        yield client


async def run(texts: Sequence[str], tally: Tally, plan: GrpcRun, on_progress: Callable[[], None]) -> None:
    """Send `texts` and record in `tally` what comes of each; `on_progress` is called after every answer.

    A call that fails gives its code to all its queries; so does a stream that ends early, to those in flight, and the
    others get a new one. The code is INTERNAL where it ends while a message is being written
    (https://github.com/grpc/grpc/issues/36066). Raises GrpcRunError when the target cannot be reached.
    """
    async with connected(plan) as client:
        if plan.stream:
            await _streams(client, texts, tally, plan, on_progress)
            return

        async def call(numbers: range) -> None:
            tally.record_sent(numbers, time.monotonic())
            inputs = [texts[number] for number in numbers]
            try:
                found = await client.embed(inputs, errors="return", **plan.options)
            except TokenbatchError as error:
                tally.record_failed(numbers, code_of(error), time.monotonic())
            else:
                tally.record_answers(numbers, [answer_of(row) for row in found.rows], time.monotonic())
            on_progress()

        if plan.due_s:
            await open_loop(plan.due_s, plan.per_call, call)
        else:
            await closed_loop(len(texts), plan.concurrency, plan.per_call, call)


async def _streams(
    client: AsyncClient, texts: Sequence[str], tally: Tally, plan: GrpcRun, on_progress: Callable[[], None]
) -> None:
    room = asyncio.Semaphore(0)

    async def inputs(first: int) -> AsyncGenerator[str]:
        for number in range(first, len(texts)):
            await room.acquire()
            tally.record_sent(range(number, number + 1), time.monotonic())
            yield texts[number]

    while (first := tally.sent) < len(texts):
        room = asyncio.Semaphore(plan.concurrency * plan.per_call)
        waiting = set(range(first, len(texts)))
        try:
            async for index, row in client.embed_stream(inputs(first), per_request=plan.per_call, **plan.options):
                waiting.discard(first + index)
                tally.record_answer(first + index, answer_of(row), time.monotonic())
                room.release()
                on_progress()
        except TokenbatchError as error:
            if tally.sent == first:
                raise GrpcRunError(f"the stream to {plan.target} ended before anything was sent: {error}") from error
            for number in sorted(waiting.intersection(range(first, tally.sent))):
                tally.record_failed(range(number, number + 1), code_of(error), time.monotonic())
