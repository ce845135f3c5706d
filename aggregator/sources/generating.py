"""The task of generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from google.protobuf.message import Message
from typing_extensions import override

from aggregator.admission import sequences
from aggregator.request.kind import Counted, Kind, Made, Parts, Revision
from aggregator.request.request import Defaults, Request
from aggregator.scheduler.work_item import Task
from aggregator.sources.wire import generation
from protos.generation.v1 import generation_pb2 as pb

_TOKEN_BYTES = 16
"""The bytes of a generated token: its id, its text, and its delta."""
_LOGPROB_BYTES = 80
"""Of a token's alternative: its text, its bytes, the logarithm."""
_USUAL_TOKENS = 1024
"""The tokens of a text whose request sets no limit."""


class Generating(Kind):
    """A text after each prompt."""

    task: ClassVar[Task] = Task.GENERATE
    name: ClassVar[str] = "generate"
    served: ClassVar[tuple[str, ...]] = ("generate",)
    message: ClassVar[str] = "a GenerateRequest"
    response: ClassVar[type[pb.GenerateResponse]] = pb.GenerateResponse

    @override
    def decode(self, value: bytes, max_inputs: int) -> pb.GenerateRequest:
        generation.check(value)
        return pb.GenerateRequest.FromString(value)

    @override
    def decode_json(self, value: bytes, max_inputs: int) -> pb.GenerateRequest:
        return generation.decode_generate_json(value)

    @override
    def decode_text(self, text: str) -> pb.GenerateRequest:
        return pb.GenerateRequest(prompt=text)

    @override
    def parts(self, message: pb.GenerateRequest, defaults: Defaults, received_s: float) -> Parts:
        return generation.parts(message, received_s)

    @override
    def answer(self, request: Request, reply_id: str, now_s: float) -> Message:
        return generation.whole(request, reply_id, now_s)

    @override
    def text_bytes(self, request: Request) -> int:
        assert request.generation is not None, "A generation's request has none. This is a bug."
        return super().text_bytes(request) + sum(message.ByteSize() for message in request.generation.messages)

    @override
    def result_bytes(self, request: Request, dimensions: int) -> int:
        generated = request.generation
        assert generated is not None, "A generation's request has none. This is a bug."
        per_token = _TOKEN_BYTES + _LOGPROB_BYTES * generated.sampling.logprobs
        return per_token * (generated.left_tokens or _USUAL_TOKENS)

    @override
    def texts(self, revision: Revision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        return sequences.prompt_texts(revision, request)

    @override
    def make(
        self, revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterator[Made]:
        return sequences.prompts(revision, request, counted)


GENERATION = Generating()
