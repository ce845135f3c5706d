"""Make requests of the messages of callers who wait, by the same rules for gRPC and HTTP; wait for their outcomes."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from sys import getsizeof
from typing import cast

from typing_extensions import override

from aggregator.errors import Code, TokenbatchError
from aggregator.request.request import Failure, Request
from aggregator.sources.calls.call_batcher import CallBatcher
from aggregator.sources.calls.callers import Callers, Identity, tenant_holder
from aggregator.sources.calls.load import Holders, Load, Room
from aggregator.sources.messages import request_of
from aggregator.sources.parsing import SMALL_BYTES, decode
from protos.embedding.v1.embedding_pb2 import EmbedRequest
from protos.generation.v1.generation_pb2 import GenerateRequest

_LOG = logging.getLogger(__name__)

GiveUp = Callable[[Request], "asyncio.Future[None] | None"]
"""Cancels a request in the pipeline. Returns the work on it that has yet to end, if any."""


class Call:
    """The origin of a request whose caller waits here. `room` is what it holds."""

    __slots__ = ("_completed", "_waiter", "room")

    def __init__(self, room: Room) -> None:
        self.room = room
        self._completed = False
        self._waiter: asyncio.Future[None] | None = None

    def complete(self) -> None:
        self._completed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def progressed(self) -> None:
        """It is answered once, at the end."""

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


class GenerationCall(Call):
    """The origin of a streamed request; a slow caller gets several deltas as one."""

    __slots__ = ("_news", "over", "streams")

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self.over = False
        self.streams = False
        self._news = asyncio.Event()

    @override
    def progressed(self) -> None:
        """Wake the caller only if it streams."""
        if self.streams:
            self._news.set()

    @override
    def complete(self) -> None:
        self.over = True
        self._news.set()

    async def news(self) -> None:
        """Wait until the text has grown or the request is complete."""
        await self._news.wait()
        self._news.clear()


def call_of(request: Request) -> Call:
    return cast("Call", request.origin)


_REST = 9.0
"""How many times as long as it worked the parser rests: it holds the interpreter's lock, which the event loop needs."""

Read = Callable[[bytes, Identity, Call], EmbedRequest | GenerateRequest]
"""Decodes a message. Raises TokenbatchError."""
_Asked = tuple[Read, bytes, Identity, Call, float, float, float]
"""A message; when it came (monotonic, and by the wall clock), and its deadline (monotonic)."""


def embedding(data: bytes, identity: Identity, _: Call) -> EmbedRequest:
    """Decode a call for embeddings. Raises InvalidRequest."""
    return decode(data, identity.defaults.max_inputs)


@dataclass(eq=False)
class Calls:
    """What all calls have in common: the caller, limits, parsing, deadlines, cancellation."""

    batcher: CallBatcher
    cancel: GiveUp
    callers: Callers
    load: Load
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    wall_clock: Callable[[], float] = field(default=time.time, kw_only=True)
    _parser: ThreadPoolExecutor = field(init=False, default_factory=lambda: ThreadPoolExecutor(1, "parser"))
    _parsing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _rested_s: float = field(init=False, default=-inf)

    def enter(self, holders: Holders) -> Room:
        """Room for one call, until the task that serves it ends: a client may read the answer late, or never.

        Raises Overloaded.
        """
        room = self.load.enter(holders)
        task = asyncio.current_task()
        assert task is not None, "A call is served by no task. This is a bug."
        task.add_done_callback(room.leave)
        return room

    async def take(
        self, data: bytes, identity: Identity, deadline_s: float, call: Call, read: Read = embedding
    ) -> Request:
        """The request in a message, its bytes added to its call's room; `deadline_s` is the call's (monotonic).

        Raises TokenbatchError.
        """
        room = call.room
        room.widen(len(data))
        asked = read, data, identity, call, self.clock(), self.wall_clock(), deadline_s
        if len(data) <= SMALL_BYTES:
            request = _request_in(*asked)
        else:
            request = await self._parse_large(*asked)
            room.charge(sum(map(getsizeof, request.inputs)) - len(data))  # texts can take four times their UTF-8
        if request.tenant != identity.defaults.tenant:
            room.put_down_to(tenant_holder(request.tenant))
        return request

    async def _parse_large(self, *asked: *_Asked) -> Request:
        """On the parser's thread, one message after another: those who send large ones wait for each other."""

        def work() -> Request:
            began_s = time.thread_time()
            try:
                return _request_in(*asked)
            finally:
                self._rested_s = self.clock() + _REST * (time.thread_time() - began_s)

        async with self._parsing:
            await asyncio.sleep(self._rested_s - self.clock())
            return await asyncio.get_running_loop().run_in_executor(self._parser, work)

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


def _request_in(*asked: *_Asked) -> Request:
    read, data, identity, call, received_s, wall_s, deadline_s = asked
    return request_of(
        read(data, identity, call),
        identity.defaults,
        call,
        received_s=received_s,
        wall_s=wall_s,
        deadline_s=deadline_s,
        traceparent=identity.traceparent,
    )


def failure_of(error: Exception) -> Failure:
    """The failure for the caller. An unexpected error is logged without its message, which may hold a text."""
    if isinstance(error, TokenbatchError):
        return Failure.of(error)
    *_, innermost = traceback.walk_tb(error.__traceback__)
    frame, line = innermost
    place = f"{Path(frame.f_code.co_filename).name}:{line}"
    _LOG.error("a call failed", extra={"error": type(error).__name__, "at": place})
    return Failure(Code.INTERNAL, "internal error: see the log of the aggregator")
