"""Read the body of /v2/embed, as Cohere's clients send it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from aggregator.request.request import Defaults
from aggregator.sources.http.answer import AskedPriority, Ignored, priority_of
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode
from aggregator.sources.http.vectors import VectorsByType
from protos.embedding.v1 import embedding_pb2 as pb

_MAX_NUMBER = 2**31 - 1
_MAX_TYPES = 6
"""As many as there are: each is written once."""
_INPUT_TYPES = {
    None: pb.INPUT_TYPE_UNSPECIFIED,
    "search_query": pb.INPUT_TYPE_QUERY,
    "search_document": pb.INPUT_TYPE_DOCUMENT,
    "classification": pb.INPUT_TYPE_UNSPECIFIED,
    "clustering": pb.INPUT_TYPE_UNSPECIFIED,
}
_TRUNCATE = {"NONE": pb.TRUNCATE_NONE, "START": pb.TRUNCATE_START, "END": pb.TRUNCATE_END}

_Type = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
_Number = Annotated[int, msgspec.Meta(ge=1, le=_MAX_NUMBER)]


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    """A part of an input: images are refused."""

    type: Literal["text"]
    text: str


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    content: Annotated[list[_Content], msgspec.Meta(min_length=1, max_length=1)]


class EmbedBody(Ignored, kw_only=True, forbid_unknown_fields=True):
    """`POST /v2/embed`."""

    model: str | None = None
    input_type: Literal["search_query", "search_document", "classification", "clustering"] | None = None
    texts: list[str] | None = None
    inputs: list[_Input] | None = None
    max_tokens: _Number | None = None
    output_dimension: _Number | None = None
    embedding_types: Annotated[list[_Type], msgspec.Meta(max_length=_MAX_TYPES)] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    priority: AskedPriority = None


_BODY = msgspec.json.Decoder(EmbedBody)


def read_embed(data: bytes, defaults: Defaults, request_id: str) -> tuple[pb.EmbedRequest, VectorsByType]:
    """The message for a body, and how it is answered. Raises FieldError."""
    asked = decode(_BODY, data)
    if bool(asked.texts) == bool(asked.inputs):
        raise FieldError("expected at least one text, in either texts or inputs", "texts")
    texts = asked.texts or [each.content[0].text for each in asked.inputs or ()]
    if len(texts) > defaults.max_inputs:
        raise FieldError(f"{len(texts)} texts: at most {defaults.max_inputs} are taken", "texts")
    message = pb.EmbedRequest(
        request_id=request_id,
        model=asked.model or "",
        inputs=[pb.Input(text=text) for text in texts],
        input_type=_INPUT_TYPES[asked.input_type],
        priority=priority_of(asked.priority, defaults.priority),
        dimensions=asked.output_dimension or 0,
        truncate=_TRUNCATE[asked.truncate or "END"],
        truncate_to=asked.max_tokens or 0,
    )
    return message, VectorsByType(asked.ignored(), list(dict.fromkeys(asked.embedding_types or ["float"])), texts)
