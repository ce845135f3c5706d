"""Health and reflection, which answer anybody: few calls at a time, and the oldest one makes way for the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from typing_extensions import override

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

T = TypeVar("T")
_Context = grpc.aio.ServicerContext[Any, Any]
_Decode = Callable[[bytes], object]
_Unary = Callable[[object, _Context], Awaitable[object]]
_Stream = Callable[[AsyncIterator[object], _Context], AsyncIterator[object]]

_MOST_CALLS = 64
_MOST_OF_A_CONNECTION = 4  # a prober has one or two
_MOST_READING = 16
"""Calls whose message is awaited: it is seen only when it is complete, and may be as large as the server takes."""
_MAX_MESSAGE_BYTES = 64 * 1024


class _Places:
    """A number of calls at a time. The oldest one is cancelled for the next."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: dict[asyncio.Task[Any], None] = {}

    async def hold(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result. Raises _GaveWay when it made way for another."""
        if len(self._calls) >= self._most:
            oldest = next(iter(self._calls))
            del self._calls[oldest]
            oldest.cancel()
        task = asyncio.create_task(work, name="serve health or reflection")
        self._calls[task] = None
        task.add_done_callback(self._leave)
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()  # where this call was cancelled
        if task.cancelled():
            raise _GaveWay
        return task.result()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._calls.pop(task, None)
        if not task.cancelled():
            task.exception()  # its call may be over, and not ask for it

    def end(self) -> None:
        for task in self._calls:
            task.cancel()


class _GaveWay(Exception):
    """A call was ended for another one."""


class LibraryServices(grpc.GenericRpcHandler):
    """Services of libraries. A library adds its handlers to this as to a server.

    At most `most_calls` are served at a time, `of_a_connection` of one; they count against nobody else's limits.
    """

    def __init__(self, most_calls: int = _MOST_CALLS, of_a_connection: int = _MOST_OF_A_CONNECTION) -> None:
        self._calls = _Places(most_calls)
        self._most_of_a_connection = of_a_connection
        self._reading = _Places(_MOST_READING)
        self._of_connections: dict[str, int] = {}
        self._services: list[grpc.GenericRpcHandler] = []
        self._known: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler], /) -> None:
        self._services.extend(generic_rpc_handlers)

    @override
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        method = handler_call_details.method
        known = self._known.get(method)
        if known is None:
            found = next((found for each in self._services if (found := each.service(handler_call_details))), None)
            if found is None:
                return None
            known = self._known[method] = self._guarded(found)
        return known

    def guarded(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The same methods within the bounds."""
        return {name: self._guarded(handler) for name, handler in handlers.items()}

    def end_calls(self) -> None:
        """End all: watches last by themselves, and a stop would wait for them."""
        self._calls.end()

    def _guarded(self, handler: Handler) -> Handler:
        serializer, decode = handler.response_serializer, cast("_Decode", handler.request_deserializer)
        if handler.request_streaming:
            stream = cast("_Stream", handler.stream_stream)

            async def serve_stream(context: _Context) -> None:
                async for answer in stream(self._messages(context, decode), context):
                    await context.write(answer)

            return grpc.stream_stream_rpc_method_handler(self._bounded(serve_stream), None, serializer)
        unary = cast("_Unary", handler.unary_stream if handler.response_streaming else handler.unary_unary)

        async def serve(context: _Context) -> object:
            async for message in self._messages(context, decode):
                return await unary(message, context)
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")

        answer = self._bounded(serve)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(answer, None, serializer)
        return grpc.stream_unary_rpc_method_handler(answer, None, serializer)

    def _bounded(self, serve: Callable[[_Context], Coroutine[Any, Any, T]]) -> Callable[[object, _Context], Any]:
        async def answer(_: object, context: _Context) -> T:
            peer = context.peer()
            count = self._of_connections.get(peer, 0)
            if count >= self._most_of_a_connection:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{count} calls of health or reflection are open on this connection: end one first",
                )
            self._of_connections[peer] = count + 1
            try:
                return await self._calls.hold(serve(context))
            except _GaveWay:
                return await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "another call took this one's place: call again"
                )
            finally:
                self._leave(peer)

        return answer

    def _leave(self, peer: str) -> None:
        left = self._of_connections[peer] - 1
        if left:
            self._of_connections[peer] = left
        else:
            del self._of_connections[peer]

    async def _messages(self, context: _Context, decode: _Decode) -> AsyncIterator[object]:
        while (data := await self._reading.hold(_read(context))) is not grpc.aio.EOF:
            if len(data) > _MAX_MESSAGE_BYTES:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"a message of {len(data)} bytes: this service takes {_MAX_MESSAGE_BYTES}",
                )
            try:
                message = decode(data)
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the message cannot be decoded")
            yield message


async def _read(context: _Context) -> Any:
    return await context.read()


class Health(health.aio.HealthServicer):
    """The health service. A name that it does not know is NOT_FOUND."""

    def handlers(self) -> dict[str, Handler]:
        """By method; they pass messages decoded, as the library takes them."""
        decode, encode = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        return {
            "Check": grpc.unary_unary_rpc_method_handler(self.Check, decode, encode),
            "Watch": grpc.unary_stream_rpc_method_handler(
                cast("Callable[..., AsyncIterator[object]]", self.Watch), decode, encode
            ),
        }
