"""A model server, a process of its own, that falls ill at SIGUSR1 in the way it was told, and is well at SIGUSR2.

python -m tests.integration.pool.sick_modelserver --port 50061 --illness nan [--born-ill]
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from typing_extensions import override

from loadtest.stack.instant_modelserver import DIMENSIONS, InstantModelServer
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc

TOKEN_BUDGET = 256
STEP_S = 0.15
_ROW_BYTES = DIMENSIONS * 4


def _one_row_less(answer: pb.EmbedBatchResponse) -> None:
    answer.embeddings = answer.embeddings[:-_ROW_BYTES]


def _not_finite(answer: pb.EmbedBatchResponse) -> None:
    rows = np.frombuffer(answer.embeddings, "<f4").copy()
    rows[-1] = np.nan
    answer.embeddings = rows.tobytes()


def _fewer_dimensions(answer: pb.EmbedBatchResponse) -> None:
    answer.dimensions = DIMENSIONS // 2
    answer.embeddings = answer.embeddings[: len(answer.embeddings) // 2]


def _another_model(said: pb.DescribeResponse) -> None:
    said.model = "another"


def _another_tokenizer(said: pb.DescribeResponse) -> None:
    said.tokenizer_fingerprint = "0" * 64


GARBAGE: Mapping[str, Callable[[pb.EmbedBatchResponse], None]] = {
    "count": _one_row_less,
    "nan": _not_finite,
    "dimensions": _fewer_dimensions,
}
IMPOSTURES: Mapping[str, tuple[Callable[[pb.DescribeResponse], None], str]] = {
    "model": (_another_model, "it serves the model another"),
    "tokenizer": (_another_tokenizer, "fingerprint"),
}
"""Each with what an aggregator says of it."""


class SickModelServer(InstantModelServer):
    """Answers as its sibling does while it is well."""

    def __init__(self, illness: str, *, ill: bool) -> None:
        super().__init__(TOKEN_BUDGET, STEP_S)
        self._illness = illness
        self.ill = ill

    @override
    async def EmbedBatch(self, request: pb.EmbedBatchRequest, context: Any) -> pb.EmbedBatchResponse:
        answer = await super().EmbedBatch(request, context)
        if self.ill and self._illness in GARBAGE:
            GARBAGE[self._illness](answer)
        return answer

    @override
    def Generate(self, request_iterator: Any, context: Any) -> Any:
        return super().Generate(request_iterator, context)

    @override
    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        said = await super().Describe(request, context)
        if self.ill and self._illness in IMPOSTURES:
            IMPOSTURES[self._illness][0](said)
        return said


async def serve(port: int, service: SickModelServer) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: setattr(service, "ill", True))
    loop.add_signal_handler(signal.SIGUSR2, lambda: setattr(service, "ill", False))
    server = grpc.aio.server()
    modelserver_pb2_grpc.add_ModelServerServicer_to_server(service, server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    server.add_insecure_port(f"localhost:{port}")
    await server.start()
    await stop.wait()
    await server.stop(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--illness", choices=[*GARBAGE, *IMPOSTURES], required=True)
    parser.add_argument("--born-ill", action="store_true")
    options = parser.parse_args()
    asyncio.run(serve(options.port, SickModelServer(options.illness, ill=options.born_ill)))


if __name__ == "__main__":
    main()
