"""Stand between an aggregator and a model server, and note what becomes of every batch."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from typing_extensions import override

from protos.modelserver.v1 import modelserver_pb2 as pb

_EMBED = "/modelserver.v1.ModelServer/EmbedBatch"
_STREAMS = ("/modelserver.v1.ModelServer/GetTokenizer", "/grpc.health.v1.Health/Watch")
_Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Sent:
    """One batch: when it was answered (monotonic), how long after it was sent, and its step, all in seconds.

    `token_budget` is what its sender allowed a step to hold at that time, in tokens.
    """

    answered_s: float
    took_s: float
    step_s: float
    token_budget: int


class Relay(grpc.GenericRpcHandler):
    """Passes every call on to `channel`; `sent` grows by each batch that came back well."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.sent: list[Sent] = []
        self._channel = channel

    @override
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = handler_call_details.method
        if method in _STREAMS:
            stream: Callable[[bytes, _Context], Any] = self._stream(method)
            return grpc.unary_stream_rpc_method_handler(stream)
        call: Callable[[bytes, _Context], Any] = self._call(method)
        return grpc.unary_unary_rpc_method_handler(call)

    def _call(self, method: str) -> Callable[[bytes, _Context], Any]:
        ask: Callable[..., grpc.aio.UnaryUnaryCall[bytes, bytes]] = self._channel.unary_unary(method)

        async def call(request: bytes, context: _Context) -> bytes:
            began_s = time.monotonic()
            try:
                reply: bytes = await ask(request, timeout=context.time_remaining())
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)
            if method == _EMBED:
                self._note(request, reply, began_s)
            return reply

        return call

    def _stream(self, method: str) -> Callable[[bytes, _Context], Any]:
        ask: Callable[..., grpc.aio.UnaryStreamCall[bytes, bytes]] = self._channel.unary_stream(method)

        async def stream(request: bytes, context: _Context) -> AsyncIterator[bytes]:
            try:
                async for reply in ask(request, timeout=context.time_remaining()):
                    yield reply
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)

        return stream

    def _note(self, request: bytes, reply: bytes, began_s: float) -> None:
        now_s = time.monotonic()
        step_s = pb.EmbedBatchResponse.FromString(reply).step_duration_s
        self.sent.append(Sent(now_s, now_s - began_s, step_s, pb.EmbedBatchRequest.FromString(request).max_step_tokens))


async def _pass_on(error: grpc.aio.AioRpcError, context: _Context) -> NoReturn:
    await context.abort(error.code(), error.details() or "")
