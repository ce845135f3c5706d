"""Hold the calls of services that are not ours, health and reflection, to the same bounds as our own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from typing_extensions import override

from aggregator.errors import InvalidRequest, TokenbatchError
from aggregator.request import Failure
from aggregator.sources.grpc.calls import Calls
from aggregator.sources.grpc.reading import NO_MESSAGE
from aggregator.sources.grpc.refusals import Context, abort

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


_MAX_MESSAGE_BYTES = 64 * 1024


class Guarded(grpc.GenericRpcHandler):
    """Such services. What a server is given to serve them is given to this instead; anybody may call them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._services: list[grpc.GenericRpcHandler] = []
        self._known: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler], /) -> None:
        """As a server's."""
        self._services.extend(generic_rpc_handlers)

    @override
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """What serves a method."""
        method = handler_call_details.method
        known = self._known.get(method)
        if known is None:
            found = next((found for each in self._services if (found := each.service(handler_call_details))), None)
            if found is None:
                return None
            known = self._known[method] = self._guarded(found)
        return known

    def _guarded(self, handler: Handler) -> Handler:
        serializer = handler.response_serializer
        decode: Any = handler.request_deserializer
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(handler.stream_stream, decode), None, serializer
            )
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._answering(handler.unary_stream, decode), None, serializer
            )
        return grpc.stream_unary_rpc_method_handler(self._answering(handler.unary_unary, decode), None, serializer)

    def _answering(self, serve: Any, decode: Any) -> Any:
        async def answer(messages: object, context: Context) -> Any:
            del messages
            try:
                request = await self._first(context, decode)
            except TokenbatchError as error:
                failure = Failure.of(error)
            else:
                return await serve(request, context)
            return await abort(context, failure)

        return answer

    def _streaming(self, serve: Any, decode: Any) -> Any:
        async def stream(messages: object, context: Context) -> None:
            del messages
            try:
                self._calls.enter((context.peer(),))
                async for answer in serve(self._messages(context, decode), context):
                    await context.write(answer)
            except TokenbatchError as error:
                failure = Failure.of(error)
            else:
                return
            await abort(context, failure)

        return stream

    async def _first(self, context: Context, decode: Any) -> Any:
        self._calls.enter((context.peer(),))
        async for message in self._messages(context, decode):
            return message
        raise InvalidRequest(NO_MESSAGE)

    async def _messages(self, context: Context, decode: Any) -> AsyncIterator[Any]:
        while (data := await self._calls.reading.message(context, context.peer())) is not None:
            if len(data) > _MAX_MESSAGE_BYTES:
                raise InvalidRequest(f"a message of {len(data)} bytes: this service takes {_MAX_MESSAGE_BYTES}")
            try:
                yield decode(data)
            except DecodeError:
                raise InvalidRequest("the message cannot be decoded") from None
