"""Serve `embedding.v1.Embeddings` to internal services: calls join the same queue as Kafka's records."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import ClassVar

import grpc
from typing_extensions import override

from aggregator.admission.ledger import Holders
from aggregator.admission.models import Models
from aggregator.observability.calls import CallTelemetry
from aggregator.observability.metrics import Limit
from aggregator.request.request import Failure, Request
from aggregator.request.vector import Vector
from aggregator.scheduler.bounds import Address
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.calls.calls import call_of
from aggregator.sources.grpc.reading import Context, GrpcCalls, RpcService, answering
from aggregator.sources.grpc.stream import OVER, OpenStream
from aggregator.sources.wire.values import encode
from k8s.pod.grpc.server import Handlers
from protos.embedding.v1 import embedding_pb2 as pb

_SILENT_S = 5.0  # of a stream, before another may have its place


async def answer(calls: GrpcCalls, request: Request) -> bytes | Failure:
    """Have a request computed, and encode its answer; a failure if none of its inputs has a result."""
    await calls.embed(request)
    failure = request.failure
    if failure is not None and not any(isinstance(outcome, Vector) for outcome in request.outcomes):
        index = request.input_at_fault
        return (
            failure
            if failure.field or index is None
            else replace(failure, field=f"{request.kind.inputs_field(request)}[{index}]")
        )
    if not request.kind.is_large(request):
        encoded = encode(request, request.request_id, calls.clock(), as_json=False)
    else:
        encoded = await in_slow_lane(partial(encode, request, request.request_id, calls.clock(), as_json=False))
    room = call_of(request).room
    if len(encoded) > room.size_bytes:  # from now on it holds the response
        room.charge(len(encoded) - room.size_bytes)
    return encoded


class EmbeddingsService(RpcService):
    """The public service. A call fails as a whole only when none of its inputs got a vector.

    Answers leave as bytes: those of one batch share most of them. A stream is over at the age of `stream_age_s`.
    """

    name: ClassVar[str] = pb.DESCRIPTOR.services_by_name["Embeddings"].full_name

    def __init__(
        self,
        calls: GrpcCalls,
        telemetry: CallTelemetry,
        models: Models,
        *,
        stream_window: int = 256,
        stream_age_s: float = 270.0,
    ) -> None:
        super().__init__(calls, telemetry)
        self._models = models
        self._stream_window = stream_window
        self._stream_age_s = stream_age_s
        self._streams: dict[OpenStream, Holders] = {}
        self._streams_over = False

    async def embed(self, context: Context) -> bytes | Failure:
        calls = self._calls
        return await answer(calls, await calls.receive(context))

    async def embed_stream(self, context: Context) -> Failure | None:
        """EmbedStream: many requests, answered as they complete; reading pauses while the window is full."""
        if self._streams_over:
            return OVER
        calls = self._calls
        identity = calls.identify(context)
        self._end_silent_stream()
        # At the limit the silent ones of an address make way, so its share would only refuse those that speak.
        holders = tuple(holder for holder in identity.holders if not isinstance(holder, Address))
        calls.load.open_stream(holders)
        stream = OpenStream(calls, self._models, identity, calls.deadline_s(context), self._stream_window)
        self._streams[stream] = holders
        age = asyncio.get_running_loop().call_later(self._stream_age_s, stream.end)
        try:
            await stream.serve(context)
        finally:
            age.cancel()
            self._close(stream)
        return OVER if stream.cut_short else None

    def _end_silent_stream(self) -> None:
        """At the limit of open streams, end the one silent for longest: its client can open another."""
        load = self._calls.load
        if self._streams and not load.streams.has_room(1):
            silent_s, stream = max(((each.silent_s, each) for each in self._streams), key=itemgetter(0))
            if silent_s >= _SILENT_S:
                load.refusal(Limit.SILENT)
                stream.end()
                self._close(stream)

    def _close(self, stream: OpenStream) -> None:
        holders = self._streams.pop(stream, None)
        if holders is not None:
            self._calls.load.close_stream(holders)

    def end_streams(self) -> None:
        """End every stream once it has answered what it has read; accept no new one."""
        self._streams_over = True
        for stream in self._streams:
            stream.end()

    async def list_models(self, context: Context) -> bytes:
        """ListModels: every revision in service. The request message is empty, and is not read."""
        self._calls.enter(context)
        return self._listed().SerializeToString()

    def _listed(self) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(
            models=[
                pb.Model(
                    name=model.name,
                    aliases=model.aliases,
                    revision=revision,
                    dimensions=served.description.dimensions,
                    matryoshka_dimensions=sorted(served.description.matryoshka_dimensions),
                    max_input_tokens=served.description.max_input_tokens,
                    ready_model_servers=len(served.servers),
                    task=served.description.kind,
                )
                for model in self._models.tasks
                for revision, served in model.revisions.items()
            ]
        )

    @override
    def handlers(self) -> Handlers:
        method = self.method
        return {
            "Embed": grpc.stream_unary_rpc_method_handler(answering(self.embed, method("Embed"))),
            "EmbedStream": grpc.stream_stream_rpc_method_handler(answering(self.embed_stream, method("EmbedStream"))),
            "ListModels": grpc.stream_unary_rpc_method_handler(answering(self.list_models, method("ListModels"))),
        }
