"""The task of embedding, which every aggregator has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from typing_extensions import override

from aggregator.admission import sequences
from aggregator.request.kind import Counted, Kind, Made, Parts, Revision
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import DEFAULT_TASK, Task
from aggregator.sources.wire import decode, encode
from protos.embedding.v1 import embedding_pb2 as pb

_from_protobuf = pb.EmbedRequest.FromString
_REPLAY = pb.EmbedResponse(replay=True).SerializeToString()
"""The end of a response that may have come before: protobuf merges messages that are concatenated."""


class Embedding(Kind):
    """A vector of each text."""

    task: ClassVar[Task] = DEFAULT_TASK
    name: ClassVar[str] = "embed"
    served: ClassVar[tuple[str, ...]] = ("embed",)
    message: ClassVar[str] = "an EmbedRequest"
    response: ClassVar[type[pb.EmbedResponse]] = pb.EmbedResponse

    @override
    def decode(self, value: bytes, max_inputs: int) -> pb.EmbedRequest:
        decode.check(value, max_inputs)
        return _from_protobuf(value)

    @override
    def decode_json(self, value: bytes, max_inputs: int) -> pb.EmbedRequest:
        return decode.decode_embed_json(value, max_inputs)

    @override
    def decode_text(self, text: str) -> pb.EmbedRequest:
        return pb.EmbedRequest(inputs=[pb.Input(text=text)])

    @override
    def parts(self, message: pb.EmbedRequest, defaults: Defaults, received_s: float) -> Parts:
        return decode.parts(message, defaults)

    @override
    def answer(self, request: Request, reply_id: str, now_s: float) -> pb.EmbedResponse:
        return encode.response(request, reply_id)

    @override
    def to_protobuf(self, request: Request, reply_id: str, now_s: float) -> bytes:
        encoded = encode.to_protobuf(request, reply_id)
        return encoded + _REPLAY if request.replay else encoded

    @override
    def texts(self, revision: Revision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        return sequences.texts(revision, request, indexes)

    @override
    def make(
        self, revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterable[Made]:
        return sequences.made(revision, request, indexes, counted)


EMBEDDING = Embedding()
