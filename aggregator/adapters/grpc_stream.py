"""Serve one EmbedStream: many requests at a time, each answered as it completes, none ending the stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from aggregator.adapters.grpc_callers import Identity
from aggregator.adapters.grpc_calls import Call, Calls, refusal
from aggregator.errors import Code, TokenbatchError
from aggregator.request import Failure, Request
from aggregator.serialized import is_large, to_protobuf
from protos.embedding.v1 import embedding_pb2 as pb

_LOG = logging.getLogger(__name__)
OVER = Failure(Code.UNAVAILABLE, "this stream is over: open a new one, and send there what has no answer yet")


class _StreamedCall(Call):
    """The `origin` of a request that came on a stream."""

    __slots__ = ("_stream", "request")

    def __init__(self, stream: Stream, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._stream = stream
        self.request: Request | None = None

    def settle(self) -> None:
        """Its answer may be written."""
        assert self.request is not None, "A request was settled before it was taken. This is a bug."
        self._stream.settled(self.request)


class Stream:
    """Requests under way on one stream. Reading stops while `window` of them wait for their answers to be taken."""

    def __init__(self, calls: Calls, identity: Identity, deadline_s: float, window: int) -> None:
        self._calls = calls
        self._identity = identity
        self._deadline_s = deadline_s
        self._window = asyncio.Semaphore(window)
        self._answers: asyncio.Queue[Request | bytes | None] = asyncio.Queue()
        self._under_way: set[Request] = set()
        self._all_read = False
        self._reading: asyncio.Task[None] | None = None
        self.cut_short = False

    def end(self) -> None:
        """Read no more; `serve` ends once all that was read is answered, `cut_short` if more might have come."""
        if self._reading is not None and self._reading.cancel():
            self.cut_short = True

    async def serve(self, messages: AsyncIterator[pb.EmbedRequest]) -> AsyncIterator[bytes]:
        """The answers in the order of completion, until every request that was read has one."""
        reading = self._reading = asyncio.create_task(self._read(messages), name="stream")
        try:
            while (answer := await self._answers.get()) is not None:
                if isinstance(answer, bytes):
                    yield answer
                elif is_large(answer):
                    yield await asyncio.to_thread(_written, answer)
                else:
                    yield _written(answer)
                self._window.release()
            if not self.cut_short:
                await reading
        finally:
            reading.cancel()
            for request in self._under_way:
                self._calls.give_up(request)
            self._under_way.clear()

    def settled(self, request: Request) -> None:
        """A request has all its outcomes; after the stream's end nobody asks for them."""
        if request not in self._under_way:
            return
        self._under_way.remove(request)
        self._calls.leave(request)
        self._answers.put_nowait(request)
        self._end_if_done()

    async def _read(self, messages: AsyncIterator[pb.EmbedRequest]) -> None:
        try:
            async for message in messages:
                await self._window.acquire()
                self._take(message)
        finally:
            self._all_read = True
            self._end_if_done()

    def _take(self, message: pb.EmbedRequest) -> None:
        call = _StreamedCall(self, message.ByteSize())
        try:
            request = self._calls.take(message, self._identity, self._deadline_s, call)
        except TokenbatchError as error:
            self._answers.put_nowait(refusal(message, error).SerializeToString())
            return
        call.request = request
        self._under_way.add(request)
        self._calls.submit(request)

    def _end_if_done(self) -> None:
        if self._all_read and not self._under_way:
            self._answers.put_nowait(None)


def _written(request: Request) -> bytes:
    """The answer; one that cannot be made must not end the stream for all the others."""
    try:
        return to_protobuf(request, request.request_id)
    except Exception:  # noqa: BLE001 - logged with its traceback
        _LOG.exception("answer could not be made")
        status = pb.Status(code=Code.INTERNAL, message="the answer could not be made")
        return pb.EmbedResponse(request_id=request.request_id, model=request.model, status=status).SerializeToString()
