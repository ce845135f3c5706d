"""Make requests of gRPC messages, by the same rules for single calls and streams, and wait for their outcomes."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from sys import getsizeof
from typing import TypeVar, cast

import grpc.aio

from aggregator.errors import Code, InvalidRequest, TokenbatchError
from aggregator.request import Failure, Request
from aggregator.sources import generation
from aggregator.sources.grpc.call_batcher import CallBatcher
from aggregator.sources.grpc.callers import Callers, Identity, tenant_holder
from aggregator.sources.grpc.load import Holders, Load, Room
from aggregator.sources.grpc.reading import NO_MESSAGE, Context, Reading, abort
from aggregator.sources.parsing import SMALL_BYTES, decode, head, parse
from aggregator.sources.response import MAX_ECHOED, fill_status
from protos.embedding.v1 import embedding_pb2 as pb

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

GiveUp = Callable[[Request], "asyncio.Future[None] | None"]
"""Cancels a request in the pipeline. Returns the work on it that has yet to end, if any."""


class Call:
    """The origin of a request from gRPC: its caller waits here. `room` is what it holds."""

    __slots__ = ("_completed", "_waiter", "room")

    def __init__(self, room: Room) -> None:
        self.room = room
        self._completed = False
        self._waiter: asyncio.Future[None] | None = None

    def complete(self) -> None:
        """Every input has its outcome."""
        self._completed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def progressed(self) -> None:
        """It is answered once."""

    async def wait(self) -> None:
        """Wait until every input has its outcome."""
        if not self._completed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


def call_of(request: Request) -> Call:
    """The call that a request came by."""
    return cast("Call", request.origin)


_Times = tuple[float, float, float]
"""The arrival of a message, monotonic and by the wall clock; and the deadline of its call, monotonic."""


Read = Callable[[bytes, Identity, Call, _Times], Request]
"""Makes a request of a message. Raises TokenbatchError."""


class Calls:
    """What all calls have in common: the caller, limits, parsing, deadlines, cancellation."""

    def __init__(
        self,
        batcher: CallBatcher,
        give_up: GiveUp,
        callers: Callers,
        load: Load,
        reading: Reading,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.callers = callers
        self.load = load
        self.reading = reading
        self.clock = clock
        self._batcher = batcher
        self._give_up = give_up
        self._wall_clock = wall_clock
        self._parser = ThreadPoolExecutor(1, "parser")

    def enter(self, holders: Holders) -> Room:
        """Room for one call, until gRPC is done with it: a client may read the answer late, or never.

        Raises Overloaded.
        """
        room = self.load.enter(holders)
        task = asyncio.current_task()
        assert task is not None, "A call is served by no task. This is a bug."
        task.add_done_callback(room.leave)
        return room

    def deadline_s(self, context: Context) -> float:
        """When a call is to be answered (monotonic)."""
        remaining_s = cast("float | None", context.time_remaining())  # the stubs know no call without a deadline
        return inf if remaining_s is None else self.clock() + remaining_s

    async def receive(
        self, context: Context, call_of_room: Callable[[Room], Call] = Call, read: Read | None = None
    ) -> Request:
        """The request of a call with one message. Raises TokenbatchError."""
        identity = self.callers.identify(context)
        call = call_of_room(self.enter(identity.holders))
        data = await self.reading.message(context, identity.holders[-1])
        if data is None:
            raise InvalidRequest(NO_MESSAGE)
        return await self.take(data, identity, self.deadline_s(context), call, read)

    async def take(
        self, data: bytes, identity: Identity, deadline_s: float, call: Call, read: Read | None = None
    ) -> Request:
        """The request in a message, its bytes added to its call's room; `deadline_s` is the call's (monotonic).

        Raises TokenbatchError.
        """
        read = read or _request_in
        room = call.room
        room.widen(len(data))
        times = self.clock(), self._wall_clock(), deadline_s
        if len(data) <= SMALL_BYTES:
            request = read(data, identity, call, times)
        else:
            loop = asyncio.get_running_loop()
            request = await loop.run_in_executor(self._parser, read, data, identity, call, times)
            room.charge(sum(map(getsizeof, request.inputs)) - len(data))  # texts can take four times their UTF-8
        if request.tenant != identity.defaults.tenant:
            room.put_down_to(tenant_holder(request.tenant))
        return request

    def submit(self, request: Request) -> None:
        """Hand it to the pipeline."""
        self._batcher.add(request)

    def give_up(self, request: Request) -> None:
        """Cancel it; it holds its room until the work on it ends."""
        work = self._give_up(request)
        if work is not None:
            call_of(request).room.keep_until(work)

    async def embed(self, request: Request) -> None:
        """Wait until every input has its outcome. When the caller cancels, the request leaves the queue."""
        self.submit(request)
        try:
            await call_of(request).wait()
        except asyncio.CancelledError:
            self.give_up(request)
            raise


def text_request(data: bytes, identity: Identity, call: Call, times: _Times) -> Request:
    """The request for a text in a message. Raises TokenbatchError."""
    received_s, wall_s, deadline_s = times
    message = generation.decode(data)
    request = generation.parse(
        message, identity.defaults, call, received_s=received_s, wall_s=wall_s, deadline_s=deadline_s
    )
    request.traceparent = identity.traceparent
    return request


def _request_in(data: bytes, identity: Identity, call: Call, times: _Times) -> Request:
    received_s, wall_s, deadline_s = times
    defaults = identity.defaults
    message = decode(data, defaults.max_inputs)
    request = parse(message, defaults, call, received_s=received_s, wall_s=wall_s, deadline_s=deadline_s)
    request.traceparent = identity.traceparent
    return request


def answering(serve: Callable[[Context], Awaitable[T | Failure]]) -> Callable[[object, Context], Awaitable[T]]:
    """The handler of a method: a failure that `serve` returns or raises ends the call with its status."""

    async def answer(messages: object, context: Context) -> T:
        del messages  # it refers to the call, and would make a cycle with it: see `abort`
        try:
            outcome = await serve(context)
        except grpc.aio.BaseError:
            raise  # the call is over
        except Exception as error:  # noqa: BLE001 - `failure_of` logs what is not expected
            outcome = failure_of(error)
        if not isinstance(outcome, Failure):
            return outcome
        ending = abort(context, outcome)
        del context
        return await ending

    return answer


def failure_of(error: Exception) -> Failure:
    """The failure for the caller. An unexpected error is logged without its message, which may hold a text."""
    if isinstance(error, TokenbatchError):
        return Failure.of(error)
    *_, innermost = traceback.walk_tb(error.__traceback__)
    frame, line = innermost
    place = f"{Path(frame.f_code.co_filename).name}:{line}"
    _LOG.error("a call failed", extra={"error": type(error).__name__, "at": place})
    return Failure(Code.INTERNAL, "internal error: see the log of the aggregator")


def refusal(data: bytes, failure: Failure) -> pb.EmbedResponse:
    """The answer on a stream to a message that could not become a request."""
    asked = head(data)
    answer = pb.EmbedResponse(request_id=asked.request_id[:MAX_ECHOED], model=asked.model[:MAX_ECHOED])
    fill_status(answer.status, failure)
    return answer
