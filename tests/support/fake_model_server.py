"""A model server on a real port, without an engine, that fails in every way a test can ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from aggregator.tokenizers.cache import tokenizer_fingerprint
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_engine import matrix_of
from tests.support.fake_tokenizer import wordpiece_files

Answer = Callable[[pb.EmbedBatchRequest], pb.EmbedBatchResponse]

FILES = wordpiece_files()
_CHUNK_BYTES = 1000
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


def describe_response(**changes: object) -> pb.DescribeResponse:
    said = pb.DescribeResponse(
        model="fake",
        model_revision="r1",
        tokenizer_fingerprint=tokenizer_fingerprint(FILES),
        dimensions=8,
        max_input_tokens=256,
        step_token_capacity=8192,
        step_query_capacity=1024,
        vocabulary_size=1000,
        normalizes=True,
        instance_id="instance-1",
        profile=pb.SaturationProfile(
            floor_s=0.01, fixed_s=0.004, per_token_s=0.00001, saturation_point=600, rule="hinge", max_tokens=8192
        ),
    )
    said.MergeFrom(pb.DescribeResponse(**changes))  # type: ignore[arg-type]  # as the test's author wrote them
    return said


def embed_response(request: pb.EmbedBatchRequest, dimensions: int = 8) -> pb.EmbedBatchResponse:
    """The right answer to a batch."""
    return pb.EmbedBatchResponse(
        embeddings=matrix_of(request.token_ids, request.lengths, dimensions).astype("<f4").tobytes(),
        dimensions=dimensions,
        step_tokens=len(request.token_ids) // 4,
        step_duration_s=0.01,
        queued_tokens=3,
        idle_before_s=0.002,
        staged_s=0.001,
    )


class Refusal(Exception):
    """An answer that is a status instead."""

    def __init__(self, code: grpc.StatusCode, details: str = "as the test wants it") -> None:
        super().__init__(details)
        self.code = code


class FakeModelServer:
    """Serves `said`, `files` and `answer`, or `garbage`; `open`, while cleared, hangs every call."""

    def __init__(self, **changes: object) -> None:
        self.said = describe_response(**changes)
        self.files = dict(FILES)
        self.answer: Answer = embed_response
        self.batches: list[pb.EmbedBatchRequest] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.garbage: bytes | None = None
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def start(self, *, serving: bool = True) -> FakeModelServer:
        """Listen, on the same port as before if it listened before."""
        options = (("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0))
        self._server = grpc.aio.server(options=options)
        self._health = health.aio.HealthServicer()
        handler = grpc.method_handlers_generic_handler("modelserver.v1.ModelServer", self._handlers())
        self._server.add_generic_rpc_handlers((handler,))
        health_pb2_grpc.add_HealthServicer_to_server(_Gated(self._health, self.open), self._server)
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self.serve(serving=serving)
        await self._server.start()
        return self

    async def serve(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._health.set("", status)

    async def kill(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    def _handlers(self) -> dict[str, Any]:
        def serialized(answer: pb.EmbedBatchResponse) -> bytes:
            return answer.SerializeToString() if self.garbage is None else self.garbage

        return {
            "EmbedBatch": grpc.unary_unary_rpc_method_handler(
                self.EmbedBatch, pb.EmbedBatchRequest.FromString, serialized
            ),
            "Describe": grpc.unary_unary_rpc_method_handler(
                self.Describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
            ),
            "GetTokenizer": grpc.unary_stream_rpc_method_handler(
                self.GetTokenizer, pb.GetTokenizerRequest.FromString, pb.TokenizerChunk.SerializeToString
            ),
        }

    async def EmbedBatch(
        self, request: pb.EmbedBatchRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.EmbedBatchResponse:
        self.batches.append(request)
        self.metadata.append(dict(context.invocation_metadata() or ()))
        await self.open.wait()
        try:
            return self.answer(request)
        except Refusal as refusal:
            await context.abort(refusal.code, str(refusal))

    async def Describe(self, request: pb.DescribeRequest, context: object) -> pb.DescribeResponse:
        del request, context
        await self.open.wait()
        return self.said

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: object) -> AsyncIterator[pb.TokenizerChunk]:
        """Stream the tokenizer's files in small pieces."""
        del request, context
        for name, content in self.files.items():
            for start in range(0, len(content), _CHUNK_BYTES):
                yield pb.TokenizerChunk(file_name=name, data=content[start : start + _CHUNK_BYTES])


class _Gated(health_pb2_grpc.HealthServicer):
    def __init__(self, inner: health.aio.HealthServicer, gate: asyncio.Event) -> None:
        self._inner = inner
        self._gate = gate

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        await self._gate.wait()
        return await self._inner.Check(request, context)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        await self._inner.Watch(request, context)
