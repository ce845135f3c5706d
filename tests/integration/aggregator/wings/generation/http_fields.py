"""The fields of bodies for texts over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from aggregator.errors import TokenbatchError
from aggregator.request.request import Defaults, Failure
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.errors import error_of
from aggregator.sources.wire.message import parse
from aggregator.wings.generation.forms import GenerationReader
from aggregator.wings.generation.http import HttpGenerationCall, ReadGeneration
from aggregator.wings.generation.kind import GENERATION
from tests.support.fake_source import GRPC
from tests.support.http_bodies import AnyRevision, room
from tests.support.http_field import Field, refusal, section

_SAMPLING = [
    Field("max_tokens", 5),
    Field("temperature", 0.5),
    Field("temperature", -1),
    Field("top_p", 0.9),
    Field("top_p", 0),
    Field("seed", 5),
    Field("stop", ["."]),
    Field("presence_penalty", 1),
    Field("frequency_penalty", 3),
    Field("stream", True),
    Field("stream_options", {"include_usage": True}),
    Field("user", "someone", "the tenant, where callers do not authenticate"),
    Field("n", 1),
    Field("n", 2),
    Field("logit_bias", {"5": 1}),
    Field("top_k", 5, "-1 and 0: all"),
    Field("min_p", 0.1),
    Field("min_tokens", 1),
    Field("repetition_penalty", 1.1),
    Field("stop_token_ids", [5]),
    Field("ignore_eos", True),
    Field("guided_json", {"type": "object"}),
    Field("priority", "background"),
    Field("priority", "high"),
    Field("wings", 2),
]
COMPLETION = [
    Field("prompt", "a text"),
    Field("prompt", ["a text", "another"]),
    *_SAMPLING,
    Field("best_of", 2),
    Field("echo", True),
    Field("suffix", "an end"),
    Field("logprobs", 3),
    Field("logprobs", 21),
]
CHAT = [
    Field("messages", [{"role": "user", "content": "hi", "name": "ada"}]),
    Field("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
    Field("messages", [{"role": "user"}]),
    *_SAMPLING,
    Field("max_completion_tokens", 5),
    Field("logprobs", True),
    Field("top_logprobs", 3),
    Field("response_format", {"type": "text"}),
    Field("response_format", {"type": "json_object"}),
    Field("tools", [{"type": "function"}]),
    Field("tool_choice", "required"),
]
_GENERATION = GenerationReader(AnyRevision(), trusts_token_ids=False)
_DEFAULTS = Defaults(GRPC, "smol", Priority.INTERACTIVE)
GENERATION_FORMS: list[tuple[str, str, ReadGeneration, dict[str, Any], list[Field]]] = [
    ("OpenAI and vLLM", "/v1/completions", _GENERATION.completion, {"prompt": "a"}, COMPLETION),
    (
        "OpenAI and vLLM",
        "/v1/chat/completions",
        _GENERATION.chat,
        {"messages": [{"role": "user", "content": "a"}]},
        CHAT,
    ),
]


def read(reads: ReadGeneration, body: dict[str, Any], field: Field) -> tuple[str, str]:
    """The same of a generation, without a server."""
    try:
        message, asked = reads(json.dumps({**body, field.name: field.value}).encode(), _DEFAULTS, "r")
        parse(GENERATION, message, _DEFAULTS, HttpGenerationCall(room(), asked), received_s=0.0, wall_s=0.0)
    except TokenbatchError as error:
        return "refused", refusal(error_of(Failure.of(error)), field)
    return "taken", field.note


def sections() -> Iterator[str]:
    for name, path, reads, body, fields in GENERATION_FORMS:
        yield from section(name, path, fields, [read(reads, body, field) for field in fields])
