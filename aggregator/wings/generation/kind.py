"""The task of generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import ClassVar

from google.protobuf.message import Message
from typing_extensions import override

from aggregator.errors import Code
from aggregator.model_server import ModelServer, ServerDescription
from aggregator.replicas.client import ModelServerClient
from aggregator.request.kind import Counted, Kind, Made, Parts, Revision
from aggregator.request.request import Defaults, Failure, Request
from aggregator.scheduler.dispatcher import Dispatcher
from aggregator.scheduler.work_item import Task
from aggregator.sources.wire.turns import TURN_PARTS
from aggregator.tokenizers.tokenizer import Tokenizer
from aggregator.wings.generation import sequences, wire
from aggregator.wings.generation.call import GeneratingModelServer
from aggregator.wings.generation.chat import template_of
from aggregator.wings.generation.costs import GenerationCosts, costs_of, prompt_curve
from aggregator.wings.generation.generation import generation_of
from aggregator.wings.generation.replica import first_token_in_s
from aggregator.wings.generation.server import TASK, generating
from protos.generation.v1 import generation_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2

_TOO_LATE = Failure(
    Code.DEADLINE_EXCEEDED, "no token is likely to come within first_token_timeout: other generations come before it"
)
_TOKEN_BYTES = 16
"""The bytes of a generated token: its id, its text, and its delta."""
_LOGPROB_BYTES = 80
"""Of a token's alternative: its text, its bytes, the logarithm."""
_LOGPROBS_PER_PART = 8
"""Writing eight log probabilities takes as long as writing one vector."""
_MANY_MESSAGES = 16
"""A template takes 60 µs for each."""
_USUAL_TOKENS = 1024
"""The tokens of a text whose request sets no limit."""


class Generating(Kind):
    """A text after each prompt."""

    task: ClassVar[Task] = TASK
    name: ClassVar[str] = "generate"
    served: ClassVar[tuple[str, ...]] = ("generate",)
    message: ClassVar[str] = "a GenerateRequest"
    response: ClassVar[type[pb.GenerateResponse]] = pb.GenerateResponse
    sizes: ClassVar[tuple[str, ...]] = (
        "max_input_tokens",
        "step_token_capacity",
        "step_query_capacity",
        "vocabulary_size",
    )
    has_options: ClassVar[bool] = False

    @override
    def decode(self, value: bytes, max_inputs: int) -> pb.GenerateRequest:
        wire.check(value)
        return pb.GenerateRequest.FromString(value)

    @override
    def decode_json(self, value: bytes, max_inputs: int) -> pb.GenerateRequest:
        return wire.decode_generate_json(value)

    @override
    def decode_text(self, text: str) -> pb.GenerateRequest:
        return pb.GenerateRequest(prompt=text)

    @override
    def parts(self, message: pb.GenerateRequest, defaults: Defaults, received_s: float) -> Parts:
        return wire.parts(message, received_s)

    @override
    def answer(self, request: Request, reply_id: str, now_s: float) -> Message:
        return wire.whole(request, reply_id, now_s)

    @override
    def text_bytes(self, request: Request) -> int:
        return super().text_bytes(request) + sum(each.ByteSize() for each in generation_of(request).messages)

    @override
    def result_bytes(self, request: Request, dimensions: int) -> int:
        generated = generation_of(request)
        per_token = _TOKEN_BYTES + _LOGPROB_BYTES * generated.sampling.logprobs
        return per_token * (generated.left_tokens or _USUAL_TOKENS)

    @override
    def answer_parts(self, request: Request) -> int:
        generated = generation_of(request)
        return 1 + len(generated.logprobs) * (1 + generated.sampling.logprobs) // _LOGPROBS_PER_PART

    @override
    def is_large(self, request: Request) -> bool:
        return self.answer_parts(request) > TURN_PARTS

    @override
    def start_by_s(self, request: Request) -> float:
        return min(request.deadline_s, generation_of(request).first_token_by_s)

    @override
    def refusal(self, request: Request, token_count: int, dispatcher: Dispatcher, now_s: float) -> Failure | None:
        by_s = generation_of(request).first_token_by_s
        if by_s == inf:
            return None
        ahead = sum(waiting.items for waiting in dispatcher.queue.classes[: request.priority + 1])
        in_s = first_token_in_s(dispatcher.replicas.values(), ahead, token_count, now_s)
        return _TOO_LATE if now_s + in_s > by_s else None

    @override
    def replayed(self, request: Request) -> None:
        generation_of(request).first_token_by_s = inf

    @override
    def restart(self, request: Request) -> bool:
        return generation_of(request).restart()

    @override
    def answered_by(self, request: Request) -> str:
        return generation_of(request).model_revision

    @override
    def first_token_s(self, request: Request) -> float:
        return generation_of(request).first_token_s

    @override
    def poison(self, request: Request) -> Sequence[bytes]:
        return (generation_of(request).prompt_ids,)

    @override
    def too_long(self, request: Request, description: ServerDescription, found: str) -> Failure:
        taken = f"{description.max_input_tokens} tokens, those of the text included"
        message = f"{found}: {description.model} takes {taken}; send less"
        return Failure(Code.OUT_OF_RANGE, message, field=generation_of(request).prompt_field)

    @override
    def details(self, said: modelserver_pb2.DescribeResponse) -> GenerationCosts:
        return costs_of(said)

    @override
    def described(self, description: ServerDescription, said: modelserver_pb2.DescribeResponse) -> ServerDescription:
        costs = description.details
        assert isinstance(costs, GenerationCosts), "A server has the costs of another kind. This is a bug."
        return replace(
            description,
            dimensions=0,
            matryoshka_dimensions=frozenset[int](),
            max_input_tokens=said.generation.context_tokens or said.max_input_tokens,
            step_query_capacity=costs.max_sequences,
            curve=prompt_curve(costs, said.step_token_capacity),
            never_zero=False,
        )

    @override
    def connect(self, client: ModelServerClient, description: ServerDescription) -> ModelServer:
        return GeneratingModelServer(client, description)

    @override
    async def probe(self, server: ModelServer, token_ids: bytes, *, timeout_s: float) -> float | None:
        await generating(server).probe(token_ids, timeout_s=timeout_s)
        return None

    @override
    def check_tokenizer(self, description: ServerDescription, tokenizer: Tokenizer) -> None:
        template_of(tokenizer).compile()

    @override
    def texts_take_long(self, request: Request) -> bool:
        return len(generation_of(request).messages) > _MANY_MESSAGES

    @override
    def texts(self, revision: Revision, request: Request, indexes: Sequence[int]) -> Sequence[str]:
        return sequences.prompt_texts(revision, request)

    @override
    def make(
        self, revision: Revision, request: Request, indexes: Sequence[int], counted: Sequence[Counted]
    ) -> Iterator[Made]:
        return sequences.prompts(revision, request, counted)


GENERATION = Generating()
