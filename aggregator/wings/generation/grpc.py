"""Serve `generation.v1.Generation` to internal services: each call streams its text."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, cast

import grpc
from typing_extensions import override

from aggregator.request.request import Failure, Request
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.calls import Call
from aggregator.sources.grpc.reading import Context, RpcService, answering
from aggregator.wings.generation.calls import GenerationCall
from aggregator.wings.generation.generation import New, generation_of, writes_long
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.wire import decode_generate, response
from k8s.pod.grpc.server import Handlers
from protos.generation.v1 import generation_pb2 as pb


def _read(call: Call, data: bytes, _: Identity) -> tuple[pb.GenerateRequest, Call]:
    """Raises InvalidRequest."""
    return decode_generate(data), call


def _written(request: Request, new: New, now_s: float, *, done: bool) -> bytes:
    """The response for what is new; empty if nothing is."""
    answer = response(request, new, "", now_s, done=done)
    return b"" if answer is None else answer.SerializeToString()


class GenerationService(RpcService):
    """The public service. A call sends all text, also of a generation that fails later, and ends with its status."""

    name: ClassVar[str] = pb.DESCRIPTOR.services_by_name["Generation"].full_name

    async def generate(self, context: Context) -> Failure | None:
        calls = self._calls
        request = await calls.receive(context, GenerationCall, _read, GENERATION)
        call = cast("GenerationCall", request.origin)
        call.streams = not generation_of(request).final_only
        calls.submit(request)
        try:
            await self._write(request, call, context)
        except BaseException:
            calls.give_up(request)
            raise
        return request.failure

    async def _write(self, request: Request, call: GenerationCall, context: Context) -> None:
        """Write every response; the last one has the outcome, unless the request failed before its first token."""
        generation = generation_of(request)
        while not call.over:
            await call.news()
            if call.streams and not call.over:
                await self._write_one(request, context, done=False)
        if request.failure is not None and not generation.token_ids:
            return
        await self._write_one(request, context, done=True)

    async def _write_one(self, request: Request, context: Context, *, done: bool) -> None:
        generation = generation_of(request)
        new = generation.read_new()  # before the text grows further
        write = partial(_written, request, new, self._calls.clock(), done=done)
        answer = await in_slow_lane(write) if writes_long(generation, new[3]) else write()
        if answer:
            await context.write(answer)

    @override
    def handlers(self) -> Handlers:
        return {
            "Generate": grpc.stream_stream_rpc_method_handler(answering(self.generate, self.method("Generate"))),
        }
