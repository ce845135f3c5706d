"""Serve `token_vectors.v1.TokenVectors` to internal services."""

from __future__ import annotations

from typing import ClassVar

import grpc
from typing_extensions import override

from aggregator.request.request import MAX_INPUTS, Failure
from aggregator.sources.calls.callers import Identity
from aggregator.sources.calls.calls import Call
from aggregator.sources.grpc.reading import Context, RpcService, answering
from aggregator.sources.grpc.service import answer
from aggregator.sources.wire.decode import decode_embed
from aggregator.wings.token_vectors.kind import TOKEN_VECTORS
from k8s.pod.grpc.server import Handlers
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.token_vectors.v1 import token_vectors_pb2 as pb


def _read(call: Call, data: bytes, _: Identity) -> tuple[embedding.EmbedRequest, Call]:
    """Raises InvalidRequest."""
    return decode_embed(data, MAX_INPUTS), call


class TokenVectorsService(RpcService):
    """The public service. A call fails as a whole only when none of its inputs got a result."""

    name: ClassVar[str] = pb.DESCRIPTOR.services_by_name["TokenVectors"].full_name

    async def embed_tokens(self, context: Context) -> bytes | Failure:
        return await answer(self._calls, await self._calls.receive(context, Call, _read, TOKEN_VECTORS))

    @override
    def handlers(self) -> Handlers:
        handler = answering(self.embed_tokens, self.method("EmbedTokens"))
        return {"EmbedTokens": grpc.stream_unary_rpc_method_handler(handler)}
