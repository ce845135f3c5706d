"""Serve one EmbedStream: many requests at a time, each answered as it completes; a failed one does not end it."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from math import inf
from typing import cast

import grpc.aio
from typing_extensions import override

from aggregator.errors import Code
from aggregator.request.request import Failure, Request
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.calls import Call, call_of, failure_of
from aggregator.sources.calls.load import Room
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.grpc.reading import Context, GrpcCalls, read_embed, refusal
from aggregator.sources.wire.encode import answer_bytes, fill_status, made_bytes, to_protobuf
from protos.embedding.v1 import embedding_pb2 as pb

_LOG = logging.getLogger(__name__)
_WINDOW_BYTES = 4 * 1024 * 1024
"""Requests in flight on a stream and answers that its client has not read: above it reading stops."""
_LOOK_S = 0.5
"""How often it is looked whether a request is late, while one that may be is in flight."""
_LATE = Failure(Code.DEADLINE_EXCEEDED, "the deadline passed before the answer was there")
OVER = Failure(Code.UNAVAILABLE, "this stream is over: open a new one, and send there what has no answer yet")


class _StreamedCall(Call):
    """The origin of a request that came on a stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: OpenStream, room: Room) -> None:
        super().__init__(room)
        self._stream = stream

    @override
    def reserve(self, request: Request) -> None:
        """Was done when it arrived: what a stream holds stops its reading."""

    @override
    def complete(self, request: Request) -> None:
        self._stream.completed(request)


_Answer = tuple[Request | bytes, Room | None]
"""An answer to write, and what it holds until it is written."""


class OpenStream:
    """The requests in flight on one stream. Reading pauses while `window` of them have answers that are not read."""

    def __init__(self, calls: GrpcCalls, identity: Identity, deadline_s: float, window: int) -> None:
        self._calls = calls
        self._identity = identity
        self._deadline_s = deadline_s
        self._window = window
        self._answers: asyncio.Queue[_Answer | None] = asyncio.Queue()
        self._in_flight: set[Request] = set()
        self._rooms: set[Room] = set()
        self._unanswered = self._unanswered_bytes = 0
        self._answer_taken = asyncio.Event()
        self._all_read = False
        self._reading: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._heard_s = calls.clock()
        self.cut_short = False

    @property
    def silent_s(self) -> float:
        """Seconds since the last message, if all have been answered; else 0."""
        return 0.0 if self._unanswered else self._calls.clock() - self._heard_s

    def end(self) -> None:
        """Stop reading. `serve` ends once all messages are answered; `cut_short` if the client had not ended."""
        if self._reading is not None and self._reading.cancel():
            self.cut_short = True

    async def serve(self, context: Context) -> None:
        """Write the answers in the order of completion, until every request that was read has one."""
        reading = self._reading = asyncio.create_task(self._read(context), name="stream")
        try:
            while (answer := await self._answers.get()) is not None:
                await self._write(*answer, context)
            if not self.cut_short:
                await reading
        finally:
            reading.cancel()
            if self._looking is not None:
                self._looking.cancel()
            for request in self._in_flight:
                self._calls.give_up(request)
            self._in_flight.clear()
            for room in self._rooms:
                room.leave()
            self._rooms.clear()

    def completed(self, request: Request) -> None:
        """A request has all its outcomes; after the end of the stream they are dropped.

        A small answer is made now: outcomes would keep the vectors of whole batches in memory.
        """
        if request not in self._in_flight:
            return
        self._in_flight.remove(request)
        self._answers.put_nowait(
            (request if request.kind.is_large(request) else _written(request), call_of(request).room)
        )
        self._end_if_done()

    async def _write(self, answer: Request | bytes, room: Room | None, context: Context) -> None:
        """Write an answer, which counts until gRPC has taken it: gRPC's own buffers are small."""
        await context.write(await in_slow_lane(partial(_written, answer)) if isinstance(answer, Request) else answer)
        self._unanswered -= 1
        if room is not None:
            self._unanswered_bytes -= room.size_bytes
            self._leave(room)
        self._answer_taken.set()

    async def _read(self, context: Context) -> None:
        try:
            while True:
                while not self._has_room():
                    self._answer_taken.clear()
                    await self._answer_taken.wait()
                message = cast("object", await context.read())  # bytes, or EOF
                if message is grpc.aio.EOF:
                    return
                self._heard_s = self._calls.clock()
                self._unanswered += 1
                await self._take(cast("bytes", message))
        finally:
            self._all_read = True
            self._end_if_done()

    def _has_room(self) -> bool:
        return not self._unanswered or (self._unanswered < self._window and self._unanswered_bytes < _WINDOW_BYTES)

    async def _take(self, message: bytes) -> None:
        room: Room | None = None
        try:
            self._calls.callers.check(self._identity)
            room = self._calls.load.enter(self._identity.holders)
            self._rooms.add(room)
            room.widen(len(message))
            call = _StreamedCall(self, room)
            read = partial(read_embed, call)
            request = await self._calls.take_large(EMBEDDING, message, self._identity, self._deadline_s, room, read)
            dimensions = self._calls.dimensions(request.model)
            room.widen(made_bytes(request) + answer_bytes(request, dimensions))
        except Exception as error:  # noqa: BLE001 - an unexpected error must not end the stream for all other requests
            if room is not None:
                self._leave(room)
            self._answers.put_nowait((refusal(message, failure_of(error)).SerializeToString(), None))
            return
        self._unanswered_bytes += room.size_bytes
        self._in_flight.add(request)
        self._calls.submit(request)
        self._look_later(request)

    def _look_later(self, *requests: Request) -> None:
        """A server may be silent for longer than these have time."""
        if self._looking is None and any(each.deadline_s < inf for each in requests):
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._end_late)

    def _end_late(self) -> None:
        """Fail the requests past their deadline. The queue expires what waits in it; a model server may hold others."""
        self._looking = None
        now_s = self._calls.clock()
        for request in [each for each in self._in_flight if each.deadline_s + _LOOK_S <= now_s]:
            self._in_flight.remove(request)
            self._answers.put_nowait((_failed(request, _LATE), call_of(request).room))
            self._calls.give_up(request)
        self._look_later(*self._in_flight)
        self._end_if_done()

    def _leave(self, room: Room) -> None:
        self._rooms.remove(room)
        room.leave()

    def _end_if_done(self) -> None:
        if self._all_read and not self._in_flight:
            self._answers.put_nowait(None)


def _written(request: Request) -> bytes:
    """The answer. A failure to encode it must not end the stream for the others."""
    try:
        return to_protobuf(request, request.request_id)
    except Exception:  # noqa: BLE001 - logged with its traceback
        _LOG.exception("answer could not be made")
        return _failed(request, Failure(Code.INTERNAL, "the answer could not be made"))


def _failed(request: Request, failure: Failure) -> bytes:
    answer = pb.EmbedResponse(request_id=request.request_id, model=request.model)
    fill_status(answer.status, failure)
    return answer.SerializeToString()
