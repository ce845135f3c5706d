"""Serve `ranking.v1.Ranking` to internal services: documents in order of their scores, and scores of pairs."""

from __future__ import annotations

from typing import ClassVar

import grpc
from typing_extensions import override

from aggregator.request.request import Failure
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.calls import Call
from aggregator.sources.grpc.reading import Context, RpcService, answering
from aggregator.sources.grpc.service import answer
from aggregator.wings.ranking.kind import RANKING
from aggregator.wings.ranking.wire import decode_rank, decode_score
from k8s.pod.grpc.server import Handlers
from protos.ranking.v1 import ranking_pb2 as pb


def _read_rank(call: Call, data: bytes, _: Identity) -> tuple[pb.RankRequest, Call]:
    """Raises InvalidRequest."""
    return decode_rank(data), call


def _read_score(call: Call, data: bytes, _: Identity) -> tuple[pb.ScoreRequest, Call]:
    """Raises InvalidRequest."""
    return decode_score(data), call


class RankingService(RpcService):
    """The public service. A call fails as a whole only when none of its documents or pairs got a score."""

    name: ClassVar[str] = pb.DESCRIPTOR.services_by_name["Ranking"].full_name

    async def rank(self, context: Context) -> bytes | Failure:
        return await answer(self._calls, await self._calls.receive(context, Call, _read_rank, RANKING))

    async def score(self, context: Context) -> bytes | Failure:
        return await answer(self._calls, await self._calls.receive(context, Call, _read_score, RANKING))

    @override
    def handlers(self) -> Handlers:
        return {
            "Rank": grpc.stream_unary_rpc_method_handler(answering(self.rank, self.method("Rank"))),
            "Score": grpc.stream_unary_rpc_method_handler(answering(self.score, self.method("Score"))),
        }
