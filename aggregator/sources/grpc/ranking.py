"""Serve `ranking.v1.Ranking` to internal services: documents in order of their scores, and scores of pairs."""

from __future__ import annotations

from functools import partial

import grpc

from aggregator.observability.calls import CallTelemetry
from aggregator.request.request import Failure
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.calls import Call
from aggregator.sources.grpc.reading import Context, GrpcCalls, RpcMethod, answering
from aggregator.sources.grpc.service import answer
from aggregator.sources.wire.scores import decode_rank, decode_score
from k8s.pod.grpc.server import Handlers
from protos.ranking.v1 import ranking_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Ranking"].full_name


def _read_rank(call: Call, data: bytes, _: Identity) -> tuple[pb.RankRequest, Call]:
    """Raises InvalidRequest."""
    return decode_rank(data), call


def _read_score(call: Call, data: bytes, _: Identity) -> tuple[pb.ScoreRequest, Call]:
    """Raises InvalidRequest."""
    return decode_score(data), call


class RankingService:
    """The public service. A call fails as a whole only when none of its documents or pairs got a score."""

    def __init__(self, calls: GrpcCalls, telemetry: CallTelemetry) -> None:
        self._calls = calls
        self._telemetry = telemetry

    async def rank(self, context: Context) -> bytes | Failure:
        return await answer(self._calls, await self._calls.receive(context, Call, _read_rank))

    async def score(self, context: Context) -> bytes | Failure:
        return await answer(self._calls, await self._calls.receive(context, Call, _read_score))

    def handlers(self) -> Handlers:
        """By method; they pass messages as bytes, and read none before the call asks for it."""
        method = partial(RpcMethod, self._telemetry, SERVICE)
        return {
            "Rank": grpc.stream_unary_rpc_method_handler(answering(self.rank, method("Rank"))),
            "Score": grpc.stream_unary_rpc_method_handler(answering(self.score, method("Score"))),
        }
