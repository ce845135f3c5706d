"""Take requests off gRPC by one set of rules, whether they come alone or on a stream, and wait for their outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from aggregator.adapters.grpc_callers import Callers, Identity
from aggregator.adapters.grpc_load import Load
from aggregator.errors import TokenbatchError
from aggregator.request import Failure, Request, parse
from protos.embedding.v1 import embedding_pb2 as pb


class Embedder(Protocol):
    """The pipeline, as gRPC sees it."""

    def submit(self, request: Request) -> None:
        """Take a request; its origin's `settle` is called once every input has its outcome."""
        ...

    def give_up(self, request: Request) -> asyncio.Future[None] | None:
        """Its caller went away: nothing more is owed. Returns the work on it that has yet to end, if any."""
        ...


class Call:
    """The `origin` of a request that came by gRPC: its caller waits here."""

    __slots__ = ("_settled", "_waiter", "size_bytes")

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        self._settled = False
        self._waiter: asyncio.Future[None] | None = None

    def settle(self) -> None:
        """Every input has its outcome."""
        self._settled = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Until then."""
        if not self._settled:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class Calls:
    """What all calls have in common: bounds, parsing, deadlines, giving up."""

    def __init__(
        self,
        embedder: Embedder,
        callers: Callers,
        load: Load,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.callers = callers
        self.load = load
        self.clock = clock
        self._embedder = embedder
        self._wall_clock = wall_clock

    def take(self, message: pb.EmbedRequest, identity: Identity, deadline_s: float, call: Call) -> Request:
        """The request in a message, with room made for it until `leave`; `deadline_s` is the call's (monotonic).

        Raises TokenbatchError.
        """
        self.load.enter(call.size_bytes)
        try:
            self.callers.check(identity)
            request = parse(
                message,
                identity.defaults,
                call,
                received_s=self.clock(),
                wall_s=self._wall_clock(),
                deadline_s=deadline_s,
            )
        except TokenbatchError:
            self.load.leave(call.size_bytes)
            raise
        request.traceparent = identity.traceparent
        return request

    def submit(self, request: Request) -> None:
        """Hand it to the pipeline."""
        self._embedder.submit(request)

    def leave(self, request: Request) -> None:
        """It is answered."""
        self.load.leave(request.origin.size_bytes)

    def give_up(self, request: Request) -> None:
        """Nobody waits for its answer any more."""
        work = self._embedder.give_up(request)
        if work is None:
            self.leave(request)
        else:
            work.add_done_callback(lambda _: self.leave(request))

    async def embed(self, request: Request) -> None:
        """Wait until every input is settled; cancelled, the request leaves the queue."""
        self.submit(request)
        try:
            await request.origin.wait()
        except asyncio.CancelledError:
            self.give_up(request)
            raise
        self.leave(request)


def refusal(message: pb.EmbedRequest, error: TokenbatchError) -> pb.EmbedResponse:
    """The answer to a request that could not be taken at all."""
    failure = Failure.of(error)
    status = pb.Status(code=failure.code, message=failure.message, retryable=failure.retryable)
    if failure.retry_after_s:
        status.retry_delay.FromNanoseconds(int(failure.retry_after_s * 1e9))
    return pb.EmbedResponse(request_id=message.request_id, model=message.model, status=status)
