"""Serve `generation.v1.Generation` to internal services: each call gets its text as it comes."""

from __future__ import annotations

import asyncio
from typing import cast

import grpc
from typing_extensions import override

from aggregator.observability.tracing import Tracing
from aggregator.request import Failure, Request
from aggregator.sources.generation import response
from aggregator.sources.grpc.calls import Call, Calls, answering, text_request
from aggregator.sources.grpc.load import Room
from aggregator.sources.grpc.reading import Context
from protos.generation.v1 import generation_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Generation"].full_name


class _TextCall(Call):
    """The origin of a request whose caller takes its text as it comes: what came while it was not looking, at once."""

    __slots__ = ("_news", "over", "streams")

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self.over = False
        self.streams = False
        self._news = asyncio.Event()

    @override
    def progressed(self) -> None:
        """There is more of the text; nobody is woken for what nobody is told yet."""
        if self.streams:
            self._news.set()

    @override
    def complete(self) -> None:
        """There is all of it, or the reason why not."""
        self.over = True
        self._news.set()

    async def news(self) -> None:
        """Until there is something new."""
        await self._news.wait()
        self._news.clear()


class GenerationService:
    """The public service. A call ends with the status of its text; what there was of it has been sent."""

    def __init__(self, calls: Calls, tracing: Tracing) -> None:
        self._calls = calls
        self._tracing = tracing

    async def generate(self, context: Context) -> Failure | None:
        """Generate: one text, a response for each time there is more of it."""
        calls = self._calls
        request = await calls.receive(context, _TextCall, text_request)
        call = cast("_TextCall", request.origin)
        call.streams = request.text is not None and not request.text.final_only
        with self._tracing.serve(SERVICE, "Generate", request.traceparent):
            calls.submit(request)
            try:
                await self._write(request, call, context)
            except BaseException:
                calls.give_up(request)
                raise
        return request.failure

    async def _write(self, request: Request, call: _TextCall, context: Context) -> None:
        """Every response, the last one with what became of it, unless it failed before its first token."""
        text = request.text
        while not call.over:
            await call.news()
            if call.streams and not call.over:
                await self._write_one(request, context, done=False)
        if text is None or (request.failure is not None and not text.token_ids):
            return
        await self._write_one(request, context, done=True)

    async def _write_one(self, request: Request, context: Context, *, done: bool) -> None:
        answer = response(request, "", self._calls.clock(), done=done)
        if answer is not None:
            await context.write(answer.SerializeToString())

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server is given to serve it; messages come as bytes, and no sooner than a call asks for them."""
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Generate": grpc.stream_stream_rpc_method_handler(answering(self.generate)),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)
