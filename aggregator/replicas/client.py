"""The gRPC client of one model server: health, description, tokenizer, batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from aggregator.errors import (
    BatchFailed,
    EngineFailed,
    ModelServerLost,
    is_cancelled,
    server_error,
)
from aggregator.model_server import (
    PRIORITIES,
    GenerationLoad,
    ModelServer,
    OutgoingBatch,
    ServerDescription,
    StepResult,
)
from aggregator.observability.costs import FREE, NOBODY, Costs
from aggregator.observability.tracing import Tracing
from aggregator.replicas.answers import MAX_MESSAGE_BYTES, BadDescription, checked_description, checked_result
from aggregator.request.kind import Kind
from protos.modelserver.v1 import modelserver_pb2 as pb

M = TypeVar("M", bound=Message)

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),  # the pipeline retries, elsewhere
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel makes its own connection
)
_HEALTH = "grpc.health.v1.Health"
_SERVICE = "modelserver.v1.ModelServer"
_MAX_TOKENIZER_BYTES = 256 * 1024 * 1024  # files of large vocabularies take tens of MB
_TOO_LARGE = "larger than max"  # gRPC's own refusal of a message, before or after the wire


class ModelServerClient:
    """One channel, kept while the server comes and goes."""

    def __init__(
        self, address: str, kinds: Sequence[Kind], tracing: Tracing | None = None, costs: Costs | None = None
    ) -> None:
        """`kinds`: those of this aggregator; a server may do others besides."""
        self.address = address
        self.kinds = kinds
        self.tracing = tracing or Tracing()
        self.costs = costs or FREE
        self._channel = channel = grpc.aio.insecure_channel(address, _OPTIONS)
        self.embed_batch = channel.unary_unary(
            f"/{_SERVICE}/EmbedBatch", pb.EmbedBatchRequest.SerializeToString, message_reader(pb.EmbedBatchResponse)
        )
        self._describe = channel.unary_unary(
            f"/{_SERVICE}/Describe", pb.DescribeRequest.SerializeToString, message_reader(pb.DescribeResponse)
        )
        self._get_tokenizer = channel.unary_stream(
            f"/{_SERVICE}/GetTokenizer", pb.GetTokenizerRequest.SerializeToString, message_reader(pb.TokenizerChunk)
        )
        health = (health_pb2.HealthCheckRequest.SerializeToString, message_reader(health_pb2.HealthCheckResponse))
        self._check = channel.unary_unary(f"/{_HEALTH}/Check", *health)
        self._watch = channel.unary_stream(f"/{_HEALTH}/Watch", *health)

    def stream_stream(self, method: str, serialize: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> Any:
        """A further method of the service, of a stream of messages each way."""
        return self._channel.stream_stream(f"/{_SERVICE}/{method}", serialize, read)

    async def describe(self, timeout_s: float) -> ServerDescription:
        """Its description, if it serves. Raises ModelServerLost or BadDescription."""
        try:
            health = await self._check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
            if health.status != health_pb2.HealthCheckResponse.SERVING:
                raise ModelServerLost("it is not serving yet")
            said = await self._describe(pb.DescribeRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise ModelServerLost(_text(error)) from error
        return checked_description(self.address, said, self.kinds)

    async def fetch_tokenizer(self, timeout_s: float) -> dict[str, bytes]:
        """Its tokenizer's files by name. Raises ModelServerLost or BadDescription."""
        files: dict[str, bytearray] = {}
        size = 0
        try:
            async for chunk in self._get_tokenizer(pb.GetTokenizerRequest(), timeout=timeout_s):
                size += len(chunk.data)
                if size > _MAX_TOKENIZER_BYTES:
                    raise BadDescription(f"its tokenizer is larger than {_MAX_TOKENIZER_BYTES} bytes")
                files.setdefault(chunk.file_name, bytearray()).extend(chunk.data)
        except grpc.aio.AioRpcError as error:
            raise ModelServerLost(_text(error)) from error
        return {name: bytes(content) for name, content in files.items()}

    async def until_not_serving(self) -> str:
        """Wait until its health is not SERVING, or it goes away; returns the reason."""
        try:
            async for health in self._watch(health_pb2.HealthCheckRequest()):
                if health.status != health_pb2.HealthCheckResponse.SERVING:
                    return "it stopped serving"
        except grpc.aio.AioRpcError as error:
            return _text(error)
        return "it ended its health stream"

    async def until_silent(self, every_s: float, timeout_s: float) -> str:
        """Check its health at an interval until it does not answer; returns the reason.

        A machine that vanished closes no connection. (gRPC servers treat keepalive pings as abuse unless configured for
        them.)
        """
        while True:
            await asyncio.sleep(every_s)
            try:
                await self._check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                return _text(error)

    async def close(self, grace_s: float | None = None) -> None:
        await self._channel.close(grace_s)


class GrpcModelServer:
    """A model server that was reached: a `ModelServer`."""

    def __init__(self, client: ModelServerClient, description: ServerDescription) -> None:
        self.description = description
        self._client = client

    @property
    def load(self) -> GenerationLoad | None:
        return None

    @property
    def last_steps(self) -> Sequence[GenerationLoad]:
        return ()

    async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
        description = self.description
        model = description.model
        request = pb.EmbedBatchRequest(
            batch_id=batch.batch_id,
            model=model,
            model_revision=description.model_revision,
            token_ids=batch.token_ids,
            lengths=batch.lengths,
            attempt=batch.attempt,
            isolate=batch.isolate,
            max_step_tokens=batch.max_step_tokens,
            second_segments=batch.second_segments,
            span_counts=batch.span_counts,
            spans=batch.spans,
            priority=PRIORITIES[batch.priority],
            max_shared_tokens=batch.max_shared_tokens,
        )
        tracing = self._client.tracing
        with tracing.step(
            model,
            description.details.operation(description.labels),
            description.address,
            tokens=batch.token_count,
            dimensions=description.dimensions if description.details.is_vectors else 0,
        ) as answered:
            traceparent = tracing.traceparent()
            metadata = (("traceparent", traceparent),) if traceparent else None
            try:
                answer = await self._client.embed_batch(request, timeout=timeout_s, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                answered(error.code().name)
                raise failure_of(error) from error
            except grpc.aio.UsageError as error:
                raise ModelServerLost("the connection was closed") from error
            except asyncio.CancelledError as error:
                answered(grpc.StatusCode.CANCELLED.name)
                if is_cancelled():
                    raise
                raise ModelServerLost("the connection was closed") from error
            answered(grpc.StatusCode.OK.name)
            result = checked_result(batch, description, answer)
            self._client.costs.charge(model, description.kind, NOBODY, result.unclaimed_s)
            return result


def message_reader(message: type[M]) -> Callable[[bytes], M]:
    """A parser of one message type; undecodable bytes become an empty message, which every check refuses.

    (If it raised, gRPC would return None as a success.)
    """

    def read(data: bytes) -> M:
        try:
            return message.FromString(data)
        except DecodeError:
            return message()

    return read


def failure_of(error: grpc.aio.AioRpcError) -> BatchFailed:
    """The meaning of a call's status for its batch."""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in (error.details() or ""):
        return EngineFailed(_text(error))
    return server_error(error.code().value[0], _text(error), whole=True)


def _text(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details() or 'no details'}"


def connected(client: ModelServerClient, description: ServerDescription) -> ModelServer:
    """The server of a description, as the kinds of its tasks call it."""
    for kind in client.kinds:
        if kind.task in description.by_task and (server := kind.connect(client, description)) is not None:
            return server
    return GrpcModelServer(client, description)
