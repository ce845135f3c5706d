"""The least that a gRPC server in Python can do: take an EmbedRequest, answer with one vector at once, on uvloop.

python -m loadtest.bench.programs.echo 50051
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
import numpy as np
import uvloop
from typing_extensions import override

from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc

DIMENSIONS = 384


class Echo(embedding_pb2_grpc.EmbeddingsServicer):
    """Answers with the message that an aggregator would send, made for each call."""

    def __init__(self) -> None:
        self._vector = np.random.default_rng(0).standard_normal(DIMENSIONS).astype("<f4").tobytes()

    @override
    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        answer = pb.EmbedResponse(
            request_id=request.request_id, model="all-minilm-l6-v2", model_revision="echo", batch_id="echo-1"
        )
        for _ in request.inputs:
            embedding = answer.embeddings.add(
                embedding=self._vector, dimensions=DIMENSIONS, encoding=pb.ENCODING_FLOAT32, token_count=12
            )
            embedding.status.SetInParent()
        answer.timings.queued.FromNanoseconds(1_000_000)
        answer.timings.batched.FromNanoseconds(1_000_000)
        answer.timings.inference.FromNanoseconds(1_000_000)
        return answer

    @override
    def EmbedStream(self, request_iterator: Any, context: Any) -> Any:
        raise NotImplementedError

    @override
    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> Any:
        raise NotImplementedError


async def serve(port: int) -> None:
    server = grpc.aio.server()
    embedding_pb2_grpc.add_EmbeddingsServicer_to_server(Echo(), server)
    server.add_insecure_port(f"localhost:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
