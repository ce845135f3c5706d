"""Serve `embedding.v1.Embeddings` to internal services: calls join the same queue as Kafka's records."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import grpc
from typing_extensions import override

from aggregator.admission.models import Models
from aggregator.observability.calls import CallTelemetry
from aggregator.request.request import Failure, Request
from aggregator.request.vector import Vector
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.calls.calls import call_of
from aggregator.sources.grpc.reading import Context, GrpcCalls, RpcService, answering
from aggregator.sources.wire.values import encode
from k8s.pod.grpc.server import Handlers
from protos.embedding.v1 import embedding_pb2 as pb


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

    Answers leave as bytes: those of one batch share most of them.
    """

    name: ClassVar[str] = pb.DESCRIPTOR.services_by_name["Embeddings"].full_name

    def __init__(self, calls: GrpcCalls, telemetry: CallTelemetry, models: Models) -> None:
        super().__init__(calls, telemetry)
        self._models = models

    async def embed(self, context: Context) -> bytes | Failure:
        calls = self._calls
        return await answer(calls, await calls.receive(context))

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
            "ListModels": grpc.stream_unary_rpc_method_handler(answering(self.list_models, method("ListModels"))),
        }
