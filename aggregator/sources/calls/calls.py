"""A source whose callers wait: make requests of their messages, admit these in batches, and wait for the outcomes."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from aggregator.admission.models import Models
from aggregator.errors import Code, TokenbatchError
from aggregator.observability.tracing import Tracing
from aggregator.request.kind import Kind
from aggregator.request.request import Defaults, Failure, Receive, Request, Source
from aggregator.scheduler.work_item import Priority
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.calls.callers import Authentication, Callers, Identity, tenant_holder
from aggregator.sources.calls.load import Load, Room
from aggregator.sources.wire.decode import SMALL_BYTES
from aggregator.sources.wire.encode import answer_bytes, made_bytes
from aggregator.sources.wire.message import parse

_LOG = logging.getLogger(__name__)
LONGEST_S = 0.01
"""The longest that a call waits for others, and so for a refusal."""
ENOUGH_INPUTS = 64
"""A larger batch hardly costs less for each call, and a server could wait for it."""

GiveUp = Callable[[Request], "asyncio.Future[None] | None"]
"""Cancels a request in the pipeline. Returns the work on it that has yet to end, if any."""


class Call:
    """The origin of a request whose caller waits here. `room` is what it holds."""

    __slots__ = ("_completed", "_waiter", "room")

    def __init__(self, room: Room) -> None:
        self.room = room
        self._completed = False
        self._waiter: asyncio.Future[None] | None = None

    def reserve(self, request: Request) -> None:
        """Hold the room of the answer and of what is made of the inputs. Raises Overloaded or InvalidRequest."""
        self.room.widen(made_bytes(request) + self.answer_bytes(request))

    def answer_bytes(self, request: Request) -> int:
        """The size of the answer as it will be written; the request's options are complete."""
        return answer_bytes(request, request.options.dimensions)

    def complete(self, request: Request) -> None:
        """Every input of its request has an outcome."""
        del request
        self._completed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def progressed(self) -> None:
        """There is something new of its request; it is answered once, at the end."""

    async def wait(self, timeout_s: float = inf) -> None:
        """Wait until every input has its outcome. Raises TimeoutError."""
        if self._completed:
            return
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _give_up, waiter) if timeout_s < inf else None
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


def call_of(request: Request) -> Call:
    return cast("Call", request.origin)


class CallBatcher:
    """Calls that wait for admission. Calls that come while others are being admitted form the next batch."""

    def __init__(self, next_batch_at: Callable[[float], float], clock: Callable[[], float] = time.monotonic) -> None:
        """`next_batch_at`: when a server takes its next batch, given the present time (both monotonic seconds)."""
        self._next_batch_at = next_batch_at
        self._clock = clock
        self._calls: list[Request] = []
        self._inputs = 0
        self._timer: asyncio.Handle | None = None
        self._due = asyncio.Event()
        self._admitting = False
        self._closed = False

    async def receive(self) -> list[Request]:
        """The next batch of calls, once it is due; empty after `close`."""
        self._admitting = False
        await self._due.wait()
        if not self._closed:
            self._due.clear()
        self._admitting = True
        calls, self._calls, self._inputs = self._calls, [], 0
        return calls

    def add(self, call: Request) -> None:
        """Add a call. Its batch is due when a server is free, when it is large enough, or after `LONGEST_S`."""
        self._calls.append(call)
        self._inputs += len(call.inputs)
        if self._admitting or self._inputs >= ENOUGH_INPUTS:
            self.receive_now()
        elif self._timer is None:
            now_s, loop = self._clock(), asyncio.get_running_loop()
            wait_s = min(LONGEST_S, self._next_batch_at(now_s) - now_s)
            if wait_s <= 0.0:  # with those that arrived in the same turn of the loop
                self._timer = loop.call_soon(self.receive_now)
            else:
                self._timer = loop.call_later(wait_s, self.receive_now)

    def receive_now(self) -> None:
        """Make the batch due now, as when a server became free."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            self._due.set()

    def close(self) -> None:
        self._closed = True
        self._due.set()


_REST = 9.0
"""How many times as long as a message took the next one waits: decoding holds the lock that the event loop needs."""

Read = Callable[[bytes, Identity], tuple[Any, Call]]
"""Decodes a message, and makes the origin of its request. Raises TokenbatchError."""


@dataclass(slots=True)
class _Arrived:
    """A call's message: when it came (monotonic, and by the wall clock), and the call's deadline (monotonic)."""

    kind: Kind
    read: Read
    data: bytes
    identity: Identity
    received_s: float
    wall_s: float
    deadline_s: float

    def decode_message(self) -> Request:
        """The request in it. Raises TokenbatchError."""
        message, call = self.read(self.data, self.identity)
        return parse(
            self.kind,
            message,
            self.identity.defaults,
            call,
            received_s=self.received_s,
            wall_s=self.wall_s,
            deadline_s=self.deadline_s,
            traceparent=self.identity.traceparent,
        )


@dataclass(eq=False)
class Calls:
    """The common part of all calls: the caller, limits, decoding, deadlines, cancellation."""

    batcher: CallBatcher
    cancel: GiveUp
    callers: Callers
    load: Load
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    wall_clock: Callable[[], float] = field(default=time.time, kw_only=True)
    _decoding: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _rested_s: float = field(init=False, default=-inf)

    def take(  # noqa: PLR0917 - a call, as all of them pass it on
        self, kind: Kind, data: bytes, identity: Identity, deadline_s: float, room: Room, read: Read
    ) -> Request:
        """The request in a message of at most `SMALL_BYTES`; `deadline_s` is the call's (monotonic).

        Raises TokenbatchError.
        """
        arrived = _Arrived(kind, read, data, identity, self.clock(), self.wall_clock(), deadline_s)
        return self._counted(arrived.decode_message(), identity, room)

    async def take_large(  # noqa: PLR0917
        self, kind: Kind, data: bytes, identity: Identity, deadline_s: float, room: Room, read: Read
    ) -> Request:
        """The request in a message of any size."""
        if len(data) <= SMALL_BYTES:
            return self.take(kind, data, identity, deadline_s, room, read)
        return await self.take_in_slow_lane(kind, data, identity, deadline_s, room, read)

    async def take_in_slow_lane(  # noqa: PLR0917
        self, kind: Kind, data: bytes, identity: Identity, deadline_s: float, room: Room, read: Read
    ) -> Request:
        """The request in a message that takes long to decode, whatever its size."""
        arrived = _Arrived(kind, read, data, identity, self.clock(), self.wall_clock(), deadline_s)
        request = await self._decode_large(arrived)
        room.charge(request.text_bytes - len(data))  # texts can take four times their UTF-8
        return self._counted(request, identity, room)

    @staticmethod
    def _counted(request: Request, identity: Identity, room: Room) -> Request:
        if request.tenant != identity.defaults.tenant:
            room.also_count_for(tenant_holder(request.tenant))
        return request

    async def _decode_large(self, arrived: _Arrived) -> Request:
        """In the slow lane, with pauses: large messages wait for each other, and leave the lane to other work."""

        def work() -> Request:
            began_s = time.thread_time()
            try:
                return arrived.decode_message()
            finally:
                self._rested_s = self.clock() + _REST * (time.thread_time() - began_s)

        async with self._decoding:
            await asyncio.sleep(self._rested_s - self.clock())
            return await in_slow_lane(work)

    def submit(self, request: Request) -> None:
        self.batcher.add(request)

    def give_up(self, request: Request) -> None:
        """Cancel it; it holds its room until the work on it ends."""
        work = self.cancel(request)
        if work is not None:
            call_of(request).room.keep_until(work)

    async def embed(self, request: Request, timeout_s: float = inf) -> None:
        """Wait until every input has its outcome. When the caller cancels or time is up, the request leaves the queue.

        Raises TimeoutError.
        """
        self.submit(request)
        try:
            await call_of(request).wait(timeout_s)
        except (asyncio.CancelledError, TimeoutError):
            self.give_up(request)
            raise


def failure_of(error: Exception) -> Failure:
    """The failure for the caller. An unexpected error is logged without its message, which may hold a text."""
    if isinstance(error, TokenbatchError):
        return Failure.of(error)
    *_, innermost = traceback.walk_tb(error.__traceback__)
    frame, line = innermost
    place = f"{Path(frame.f_code.co_filename).name}:{line}"
    _LOG.error("a call failed", extra={"error": type(error).__name__, "at": place})
    return Failure(Code.INTERNAL, "internal error: see the log of the aggregator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The requests that gRPC and HTTP serve, and their limits; `default_model` is for calls that name none."""

    default_model: str
    models: Models
    give_up: GiveUp
    load: Load
    authentication: Authentication | None
    tracing: Tracing


class CallSource(Source):
    """The common part of gRPC and HTTP. Their callers are refused where a limit is reached."""

    refusable = True

    def __init__(self, name: str, served: Served, max_inputs: int) -> None:
        self.name = name
        self._batcher = CallBatcher(served.models.next_due_s)
        defaults = Defaults(
            source=self,
            model=served.default_model,
            priority=Priority.INTERACTIVE,
            max_inputs=max_inputs,
            trusts_tenant=served.authentication is None,
        )
        self._callers = Callers(defaults, served.authentication, traced=served.tracing.enabled)

    @property
    @override
    def receivers(self) -> Sequence[Receive]:
        return (self._batcher.receive,)

    @override
    def receive_now(self) -> None:
        self._batcher.receive_now()

    @override
    async def reply(self, requests: Sequence[Request]) -> AsyncIterator[Sequence[Request]]:
        for request in requests:
            call_of(request).complete(request)
        yield requests

    @override
    def reserve(self, request: Request) -> None:
        call_of(request).reserve(request)

    @override
    def progressed(self, request: Request) -> None:
        call_of(request).progressed()
