"""Fuzz the bodies of requests for texts over HTTP."""

from __future__ import annotations

import json
from typing import Any

from aggregator.errors import TokenbatchError
from aggregator.request.request import Request
from aggregator.wings.generation.forms import ChatRequest, CompletionRequest, GenerationReader
from aggregator.wings.generation.generation import generation_of
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.generation.writing import DONE, GenerationWriter
from protos.generation.v1 import generation_pb2 as pb
from tests.fuzz.http_targets import DEFAULTS, parsed, refused
from tests.fuzz.target import Target
from tests.support.fake_tokenizer import Pieces
from tests.support.http_bodies import AnyRevision

_GENERATION = GenerationReader(AnyRevision(), trusts_token_ids=True)
_LETTERS: Any = Pieces(lambda token_id: chr(97 + token_id % 26))


def check_generation(data: bytes) -> None:
    """A body of /v1/completions, or of /v1/chat/completions behind an odd byte."""
    read = _GENERATION.chat if data[:1] and data[0] % 2 else _GENERATION.completion
    try:
        message, asked = read(data[1:], DEFAULTS, "id")
        request = parsed(GENERATION, message)
    except TokenbatchError as error:
        refused(error)
        return
    _write(request, asked)


def _write(request: Request, asked: CompletionRequest | ChatRequest) -> None:
    """Two tokens, whole and as events."""
    generated = generation_of(request)
    assert request.inputs[0] or generated.messages, "There is no prompt."
    generated.begin("r1", bytes(4), _LETTERS)
    logprobs = [pb.TokenLogprobs(token=pb.TokenLogprob(token_id=number, logprob=-1)) for number in range(2)]
    generated.extend([0, 1], logprobs)
    if not generated.finished:
        generated.end(pb.FINISH_REASON_LENGTH)
    json.loads(GenerationWriter(request, asked, lambda: _LETTERS).whole())
    generated.restart_stream()
    *events, last = GenerationWriter(request, asked, lambda: _LETTERS).events(done=True)
    assert last == DONE, "A stream does not end."
    for event in events:
        json.loads(event.removeprefix(b"data: "))


TARGETS = (
    Target("http_generation", check_generation),
)  # fmt: skip
