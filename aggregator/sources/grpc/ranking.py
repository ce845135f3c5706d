"""Serve `ranking.v1.Ranking` to internal services: documents in order of their scores, and scores of pairs."""

from __future__ import annotations

import grpc

from aggregator.observability.tracing import Tracing
from aggregator.request.request import Failure
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.calls import Call
from aggregator.sources.grpc.reading import Context, GrpcCalls, answering
from aggregator.sources.grpc.service import answer
from aggregator.sources.wire.scores import decode_rank, decode_score
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

    def __init__(self, calls: GrpcCalls, tracing: Tracing) -> None:
        self._calls = calls
        self._tracing = tracing

    async def rank(self, context: Context) -> bytes | Failure:
        request = await self._calls.receive(context, Call, _read_rank)
        with self._tracing.serve(SERVICE, "Rank", request.traceparent):
            return await answer(self._calls, request)

    async def score(self, context: Context) -> bytes | Failure:
        request = await self._calls.receive(context, Call, _read_score)
        with self._tracing.serve(SERVICE, "Score", request.traceparent):
            return await answer(self._calls, request)

    def handler(self) -> grpc.GenericRpcHandler:
        """The gRPC handler; it passes messages as bytes, and reads none before the call asks for it."""
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Rank": grpc.stream_unary_rpc_method_handler(answering(self.rank)),
            "Score": grpc.stream_unary_rpc_method_handler(answering(self.score)),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)
