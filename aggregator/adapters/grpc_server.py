"""Serve `embedding.v1.Embeddings` to internal services: calls join the same queue as Kafka's records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf
from typing import Any, cast

import grpc

from aggregator.adapters.grpc_calls import Call, Calls
from aggregator.adapters.grpc_refusals import Context, abort
from aggregator.adapters.grpc_stream import OVER, Stream
from aggregator.adapters.tracing import Tracing
from aggregator.errors import TokenbatchError
from aggregator.models import Models
from aggregator.request import Failure, Request
from aggregator.serialized import is_large, to_protobuf
from protos.embedding.v1 import embedding_pb2 as pb

__all__ = ["SERVICE", "Call", "EmbeddingsService"]

SERVICE = pb.DESCRIPTOR.services_by_name["Embeddings"].full_name


class EmbeddingsService:
    """The public service. A call fails as a whole only when none of its inputs got a vector.

    Answers leave as bytes: those of one batch share most of them. A stream is over at the age of `stream_age_s`.
    """

    def __init__(
        self, calls: Calls, models: Models, tracing: Tracing, *, stream_window: int = 256, stream_age_s: float = 270.0
    ) -> None:
        self._calls = calls
        self._models = models
        self._tracing = tracing
        self._stream_window = stream_window
        self._stream_age_s = stream_age_s
        self._streams: set[Stream] = set()
        self._streams_over = False

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> bytes:
        """One call, one or many inputs."""
        calls = self._calls
        try:
            identity = calls.callers.identify(context)
            taken = calls.take(request, identity, self._deadline_s(context), Call(request.ByteSize()))
        except TokenbatchError as error:
            await abort(context, Failure.of(error))
        with self._tracing.serve(SERVICE, "Embed", identity.traceparent):
            await calls.embed(taken)
        failure = _whole_failure(taken)
        if failure is not None:
            await abort(context, failure)
        if is_large(taken):
            return await asyncio.to_thread(to_protobuf, taken, taken.request_id)
        return to_protobuf(taken, taken.request_id)

    async def EmbedStream(
        self, request_iterator: AsyncIterator[pb.EmbedRequest], context: Context
    ) -> AsyncIterator[bytes]:
        """Many requests on one stream, answered as they complete; reading pauses while the window is full."""
        if self._streams_over:
            await abort(context, OVER)
        calls = self._calls
        try:
            identity = calls.callers.identify(context)
            calls.load.open_stream()
        except TokenbatchError as error:
            await abort(context, Failure.of(error))
        stream = Stream(calls, identity, self._deadline_s(context), self._stream_window)
        self._streams.add(stream)
        age = asyncio.get_running_loop().call_later(self._stream_age_s, stream.end)
        try:
            with self._tracing.serve(SERVICE, "EmbedStream", identity.traceparent):
                async for answer in stream.serve(request_iterator):
                    yield answer
        finally:
            age.cancel()
            self._streams.remove(stream)
            calls.load.close_stream()
        if stream.cut_short:
            await abort(context, OVER)

    def end_streams(self) -> None:
        """Let every stream answer what it has read, and be over; no more are opened."""
        self._streams_over = True
        for stream in self._streams:
            stream.end()

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """Every revision that is in service."""
        del request
        try:
            self._calls.callers.identify(context)
        except TokenbatchError as error:
            await abort(context, Failure.of(error))
        return pb.ListModelsResponse(
            models=[
                pb.Model(
                    name=model.name,
                    aliases=model.aliases,
                    revision=revision,
                    dimensions=served.description.dimensions,
                    matryoshka_dimensions=sorted(served.description.matryoshka_dimensions),
                    max_input_tokens=served.description.max_input_tokens,
                    ready_model_servers=len(served.engines),
                )
                for model in self._models
                for revision, served in model.revisions.items()
            ]
        )

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server is given to serve it."""
        embed = pb.EmbedRequest.FromString
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Embed": grpc.unary_unary_rpc_method_handler(self.Embed, embed),
            "EmbedStream": grpc.stream_stream_rpc_method_handler(self.EmbedStream, embed),
            "ListModels": grpc.unary_unary_rpc_method_handler(
                self.ListModels, pb.ListModelsRequest.FromString, pb.ListModelsResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _deadline_s(self, context: Context) -> float:
        remaining_s = cast("float | None", context.time_remaining())  # the stubs know no call without a deadline
        return inf if remaining_s is None else self._calls.clock() + remaining_s


def _whole_failure(request: Request) -> Failure | None:
    """The first failure, when no input has a vector."""
    first: Failure | None = None
    for outcome in request.outcomes:
        if not isinstance(outcome, Failure):
            return None
        first = first or outcome
    return first
