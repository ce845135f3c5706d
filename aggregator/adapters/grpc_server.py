"""Serve `embedding.v1.Embeddings` to internal services: calls join the same queue as Kafka's records."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from aggregator.adapters.tracing import Tracing
from aggregator.answer import response
from aggregator.errors import RequestError, StartError
from aggregator.models import Models
from aggregator.request import Defaults, Failure, Request, parse
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc

_LOG = logging.getLogger(__name__)
_SERVICE = pb.DESCRIPTOR.services_by_name["Embeddings"].full_name
_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_STREAM_WINDOW = 256

Context = grpc.aio.ServicerContext[Any, Any]


class Embedder(Protocol):
    """The pipeline, as gRPC sees it."""

    async def embed(self, request: Request) -> None:
        """Wait until every input of the request is settled."""
        ...


@dataclass(slots=True, eq=False)
class Call:
    """The `origin` of a request that came by gRPC: its caller waits here."""

    settled: asyncio.Event = field(default_factory=asyncio.Event)


class EmbeddingsService(pb_grpc.EmbeddingsServicer):
    """The public service. A call fails as a whole only when none of its inputs got a vector."""

    def __init__(
        self,
        embedder: Embedder,
        models: Models,
        defaults: Defaults,
        tracing: Tracing,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._embedder = embedder
        self._models = models
        self._defaults = defaults
        self._tracing = tracing
        self._clock = clock
        self._wall_clock = wall_clock

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """One call, one or many inputs."""
        deadline_s = self._deadline_s(context)
        traceparent = _traceparent(context) if self._tracing.enabled else None
        with self._tracing.serve(_SERVICE, "Embed", traceparent):
            answer = await self._answer(request, deadline_s, traceparent)
        if answer.status.code and all(each.status.code for each in answer.embeddings):
            await context.abort(_STATUS[answer.status.code], answer.status.message)
        return answer

    async def EmbedStream(
        self, request_iterator: AsyncIterator[pb.EmbedRequest], context: Context
    ) -> AsyncIterator[pb.EmbedResponse]:
        """Many requests on one stream, answered as they complete; reading pauses while the window is full."""
        deadline_s = self._deadline_s(context)
        traceparent = _traceparent(context) if self._tracing.enabled else None
        answers: asyncio.Queue[pb.EmbedResponse | None] = asyncio.Queue()
        window = asyncio.Semaphore(_STREAM_WINDOW)

        async def answer_one(request: pb.EmbedRequest) -> None:
            answers.put_nowait(await self._answer(request, deadline_s, traceparent))

        async def read() -> None:
            async with asyncio.TaskGroup() as tasks:
                async for request in request_iterator:
                    await window.acquire()
                    tasks.create_task(answer_one(request), name="stream request")
            answers.put_nowait(None)

        reading = asyncio.create_task(read(), name="stream")
        try:
            while (answer := await answers.get()) is not None:
                yield answer
                window.release()
            await reading
        finally:
            reading.cancel()

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """Every revision that is in service."""
        del request, context
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

    def _deadline_s(self, context: Context) -> float:
        remaining_s: float | None = context.time_remaining()
        return inf if remaining_s is None else self._clock() + remaining_s

    async def _answer(self, message: pb.EmbedRequest, deadline_s: float, traceparent: bytes | None) -> pb.EmbedResponse:
        received_s = self._clock()
        call = Call()
        try:
            request = parse(
                message,
                self._defaults,
                call,
                received_s=received_s,
                wall_s=self._wall_clock(),
                deadline_s=deadline_s,
            )
        except RequestError as error:
            return _refusal(message, error)
        request.traceparent = traceparent
        await self._embedder.embed(request)
        return response(request, request.request_id)


def _refusal(message: pb.EmbedRequest, error: RequestError) -> pb.EmbedResponse:
    """The answer to a request that could not be taken at all."""
    failure = Failure.of(error)
    status = pb.Status(code=failure.code, message=failure.message, retryable=failure.retryable)
    return pb.EmbedResponse(request_id=message.request_id, model=message.model, status=status)


def _traceparent(context: Context) -> bytes | None:
    for name, value in context.invocation_metadata() or ():
        if name == "traceparent":
            return value if isinstance(value, bytes) else value.encode()
    return None


class GrpcServer:
    """The listener: the service, health per service, reflection."""

    def __init__(self, service: EmbeddingsService, bind: str, max_message_bytes: int) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ]
        )
        self._health = health.aio.HealthServicer()
        self._bind = bind
        self.address = ""
        pb_grpc.add_EmbeddingsServicer_to_server(service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    async def start(self) -> None:
        """Listen; NOT_SERVING until `set_serving`. Raises StartError when the address cannot be bound."""
        await self.set_serving(serving=False)
        try:
            port = self._server.add_insecure_port(self._bind)
        except RuntimeError as error:
            raise StartError(f"grpc.bind {self._bind} cannot be bound: is another program using the port?") from error
        self.address = f"{self._bind.rpartition(':')[0]}:{port}"
        await self._server.start()
        _LOG.info("grpc listening", extra={"address": self.address})

    async def set_serving(self, *, serving: bool) -> None:
        """What the health service says, of the server and of the service."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", _SERVICE):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those under way finish within the grace period."""
        await self.set_serving(serving=False)
        await self._server.stop(grace_s)
