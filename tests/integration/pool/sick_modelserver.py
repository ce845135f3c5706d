"""A model server, a process of its own, that falls ill at SIGUSR1 in the way it was told, and is well at SIGUSR2.

python -m tests.integration.pool.sick_modelserver --port 50061 --illness not-finite [--born-ill]
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from typing_extensions import override

from loadtest.stack.instant_modelserver import InstantModelServer
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc

TOKEN_BUDGET = 256
STEP_S = 0.15


NOT_FINITE, OF_ANOTHER_MODEL = "not-finite", "of-another-model"


class SickModelServer(InstantModelServer):
    """Answers as its sibling does while it is well."""

    def __init__(self, illness: str, *, ill: bool) -> None:
        super().__init__(TOKEN_BUDGET, STEP_S)
        self._illness = illness
        self.ill = ill

    @override
    async def EmbedBatch(self, request: pb.EmbedBatchRequest, context: Any) -> pb.EmbedBatchResponse:
        answer = await super().EmbedBatch(request, context)
        if self.ill and self._illness == NOT_FINITE:
            rows = np.frombuffer(answer.embeddings, "<f4").copy()
            rows[-1] = np.nan
            answer.embeddings = rows.tobytes()
        return answer

    @override
    def Generate(self, request_iterator: Any, context: Any) -> Any:
        return super().Generate(request_iterator, context)

    @override
    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        said = await super().Describe(request, context)
        if self.ill and self._illness == OF_ANOTHER_MODEL:
            said.model = "another"
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
    parser.add_argument("--illness", choices=(NOT_FINITE, OF_ANOTHER_MODEL), required=True)
    parser.add_argument("--born-ill", action="store_true")
    options = parser.parse_args()
    asyncio.run(serve(options.port, SickModelServer(options.illness, ill=options.born_ill)))


if __name__ == "__main__":
    main()
