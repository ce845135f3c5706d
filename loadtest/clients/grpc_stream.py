"""Send many queries on one EmbedStream, and account for each as its answer comes, in whatever order."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace

import grpc

from loadtest.clients.grpc import GrpcRun, GrpcRunError, connected
from loadtest.clients.messages import Wishes, answers, request
from loadtest.tally import Answer, Tally
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc


async def run(texts: Sequence[str], tally: Tally, plan: GrpcRun, on_progress: Callable[[], None]) -> None:
    """Send `texts` and record in `tally` what comes of each, `plan.concurrency` requests at a time on one stream.

    A stream that ends early gives its code to the queries in flight; the others get a new one. The code is INTERNAL
    where it ends while a message is being written (https://github.com/grpc/grpc/issues/36066). Raises GrpcRunError when
    the target cannot be reached.
    """
    wishes = replace(plan.wishes, expire_s=plan.wishes.expire_s or plan.timeout_s)
    starts = range(0, len(texts), plan.per_call)
    parts = iter([range(start, min(start + plan.per_call, len(texts))) for start in starts])
    async with connected(plan) as channel:
        stub = embedding_pb2_grpc.EmbeddingsStub(channel)
        while (sent := tally.sent) < len(texts):
            stream = _Stream(texts, tally, asyncio.Semaphore(plan.concurrency), wishes, on_progress)
            ended = await stream.exchange(stub, parts)
            if tally.sent == sent:
                raise GrpcRunError(f"the stream to {plan.target} ended before anything was sent: {ended}")


class _Stream:
    """One EmbedStream and the requests in flight on it, by their id."""

    def __init__(
        self,
        texts: Sequence[str],
        tally: Tally,
        room: asyncio.Semaphore,
        wishes: Wishes,
        on_progress: Callable[[], None],
    ) -> None:
        self._texts = texts
        self._tally = tally
        self._room = room
        self._wishes = wishes
        self._on_progress = on_progress
        self._run_id = secrets.token_hex(4)
        self._in_flight: dict[str, range] = {}

    async def exchange(self, stub: embedding_pb2_grpc.EmbeddingsAsyncStub, parts: Iterator[range]) -> str:
        """Send all of `parts`, or as many as the stream takes, and read what comes back; returns how it ended."""
        try:
            async for response in stub.EmbedStream(self._requests(parts)):
                self._read(response)
        except grpc.aio.AioRpcError as error:
            code: int = error.code().value[0]
            for numbers in self._in_flight.values():
                self._record(numbers, [Answer(code)] * len(numbers))
            return f"{error.code().name}, {error.details()}"
        return "OK"

    async def _requests(self, parts: Iterator[range]) -> AsyncIterator[pb.EmbedRequest]:
        await self._room.acquire()
        for numbers in parts:
            request_id = f"{self._run_id}-{numbers.start}"
            self._in_flight[request_id] = numbers
            message = request([self._texts[number] for number in numbers], request_id, self._wishes)
            sent_s = time.monotonic()
            for number in numbers:
                self._tally.record_sent(number, sent_s)
            yield message
            await self._room.acquire()

    def _read(self, response: pb.EmbedResponse) -> None:
        self._room.release()
        numbers = self._in_flight.pop(response.request_id, None)
        if numbers is None:
            self._tally.mismatched += 1
            return
        found = answers(response)
        if not response.embeddings:  # refused as a whole
            found *= len(numbers)
        self._record(numbers, found)

    def _record(self, numbers: range, found: Sequence[Answer]) -> None:
        self._tally.record_answers(numbers, found, time.monotonic())
        self._on_progress()
