"""The task of giving a vector of each token, or its weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from typing_extensions import override

from aggregator.errors import InvalidRequest
from aggregator.request.kind import Counted, Kind, Made, Parts, Revision
from aggregator.request.request import Chunks, Defaults, Request
from aggregator.request.vector import vector_bytes
from aggregator.scheduler.work_item import Task
from aggregator.sources.wire import decode
from aggregator.wings.token_vectors import sequences, wire
from aggregator.wings.token_vectors.rules import Rules
from aggregator.wings.token_vectors.sequences import Sequences, prompt_of, sequences_of
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.modelserver.v1 import modelserver_pb2
from protos.token_vectors.v1 import token_vectors_pb2 as pb

_LARGE_BYTES = 1024 * 1024  # of rows, which take a millisecond to encode
_CHARACTERS_PER_TOKEN = 3
"""At the least, of texts whose tokens are not counted yet."""
_ID_BYTES, _SCALE_BYTES = 10, 16
"""Of a row beside its numbers, in protobuf, and in JSON with a third more: the id of a weight, the scale of int8."""


def rows_of(request: Request) -> int:
    """The rows of all its inputs; before they are counted, about."""
    return sequences_of(request).rows or request.characters // _CHARACTERS_PER_TOKEN


class TokenVectors(Kind):
    """A row of each token of every text."""

    task: ClassVar[Task] = Rules.task
    name: ClassVar[str] = "token_vectors"
    served: ClassVar[tuple[str, ...]] = ("multi_vector", "sparse")
    message: ClassVar[str] = "an EmbedRequest"
    response: ClassVar[type[pb.EmbedTokensResponse]] = pb.EmbedTokensResponse

    @override
    def decode(self, value: bytes, max_inputs: int) -> embedding.EmbedRequest:
        decode.check(value, max_inputs)
        return embedding.EmbedRequest.FromString(value)

    @override
    def decode_json(self, value: bytes, max_inputs: int) -> embedding.EmbedRequest:
        return decode.decode_embed_json(value, max_inputs)

    @override
    def decode_text(self, text: str) -> embedding.EmbedRequest:
        return embedding.EmbedRequest(inputs=[embedding.Input(text=text)])

    @override
    def parts(self, message: embedding.EmbedRequest, defaults: Defaults, received_s: float) -> Parts:
        inputs, outcomes, options, _ = decode.parts(message, defaults)
        if any(isinstance(each, Chunks) for each in inputs):
            raise InvalidRequest("a document in chunks gets a vector a chunk, not a token: send texts", "inputs")
        return inputs, outcomes, options, Sequences()

    @override
    def answer(self, request: Request, reply_id: str, now_s: float) -> pb.EmbedTokensResponse:
        return wire.response(request, reply_id)

    @override
    def result_bytes(self, request: Request, dimensions: int) -> int:
        options, count = request.options, len(request.inputs)
        row_bytes = vector_bytes(options.dimensions or dimensions, options.encoding)
        if sequences_of(request).weights:
            row_bytes += _ID_BYTES
        elif options.encoding == embedding.ENCODING_INT8:
            row_bytes += _SCALE_BYTES
        return -(-rows_of(request) // count) * row_bytes

    @override
    def is_large(self, request: Request) -> bool:
        return self.result_bytes(request, 0) * len(request.inputs) >= _LARGE_BYTES

    @override
    def details(self, said: modelserver_pb2.DescribeResponse) -> Rules:
        return Rules.of(said.token_vectors)

    @override
    def texts(self, revision: Revision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        prompt = prompt_of(revision, request)
        return [prompt + value for index in indexes if isinstance(value := request.inputs[index], str)]

    @override
    def make(
        self, revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterator[Made]:
        return sequences.made(revision, request, indexes, counted)


TOKEN_VECTORS = TokenVectors()
