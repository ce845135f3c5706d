"""Embeddings as Cohere's clients ask for them, in both versions of its API."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from sys import getsizeof
from typing import Annotated, ClassVar, Literal

import msgspec
from typing_extensions import override

from aggregator.request.request import Defaults, Request
from aggregator.sources.http.answer import Answer, AskedPriority, Ignored, TextPart, priority_of, token_count
from aggregator.sources.http.embeddings import Number
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.http.vectors import ANSWER_BYTES, DTYPES, MANY_FLOATS, VECTOR_BYTES, joined, rows_of
from aggregator.sources.wire.message import check_count
from protos.embedding.v1 import embedding_pb2 as pb

_INPUT_TYPES = {
    None: pb.INPUT_TYPE_UNSPECIFIED,
    "search_query": pb.INPUT_TYPE_QUERY,
    "search_document": pb.INPUT_TYPE_DOCUMENT,
    "classification": pb.INPUT_TYPE_UNSPECIFIED,
    "clustering": pb.INPUT_TYPE_UNSPECIFIED,
}
_TRUNCATE = {"NONE": pb.TRUNCATE_NONE, "START": pb.TRUNCATE_START, "END": pb.TRUNCATE_END}
_Type = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
_TYPES = 6
"""The most that a request may name: a response has each type once."""


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    content: Annotated[list[TextPart], msgspec.Meta(min_length=1, max_length=1)]


class EmbedBody(Ignored, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/embed` and `/v2/embed`: what one of them has not, it takes."""

    remedies: ClassVar[Mapping[str, str]] = {
        "images": "texts alone are embedded; leave it out",
        "input": "send texts; POST /v1/embeddings takes OpenAI's",
    }

    model: str | None = None
    input_type: Literal["search_query", "search_document", "classification", "clustering"] | None = None
    texts: list[str] | None = None
    inputs: list[_Input] | None = None
    max_tokens: Number | None = None
    output_dimension: Number | None = None
    embedding_types: Annotated[list[_Type], msgspec.Meta(max_length=_TYPES)] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    priority: AskedPriority = None


_EMBED_BODY = msgspec.json.Decoder(EmbedBody)


def read_embed(
    data: bytes, defaults: Defaults, request_id: str, *, version: int
) -> tuple[pb.EmbedRequest, VectorsByType]:
    """The message for a body, and how it is answered in the `version` of the API. Raises FieldError."""
    asked = decode_body(_EMBED_BODY, data)
    if bool(asked.texts) == bool(asked.inputs):
        raise FieldError("expected at least one text, in either texts or inputs", "texts")
    texts = asked.texts or [each.content[0].text for each in asked.inputs or ()]
    check_count(len(texts), defaults.max_inputs, "texts", "texts", FieldError)
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
    types = list(dict.fromkeys(asked.embedding_types or ()))
    return message, VectorsByType(asked.ignored(), types, texts, version)


class VectorsByType(Answer):
    """The vectors of all texts in each type that was asked for, and the texts.

    Where none was asked for, version 1 of the API gives a list of floats, version 2 the type `float`.
    """

    inputs = "texts"
    remedy = "set truncate to END"
    names: Mapping[str, str] = {"dimensions": "output_dimension"}

    def __init__(self, ignored: str, types: Sequence[str], texts: Sequence[str], version: int) -> None:
        super().__init__(ignored)
        self._types = types or ["float"]
        self._is_list = not types and version == 1
        self._texts = texts
        self._version = str(version)

    @override
    def takes_long(self, request: Request) -> bool:
        numbers = len(self._types) * len(request.outcomes) * request.options.dimensions
        return numbers > MANY_FLOATS or super().takes_long(request)

    @override
    def size_bytes(self, request: Request) -> int:
        row = sum(VECTOR_BYTES + _size_bytes(name, request.options.dimensions) for name in self._types)
        return ANSWER_BYTES + len(request.inputs) * row + sum(map(getsizeof, self._texts))

    @override
    def write(self, request: Request) -> bytes:
        return joined(self._pieces(request))

    def _pieces(self, request: Request) -> Iterator[bytes]:
        yield b'{"response_type":"embeddings_%b","id":%b,"embeddings":' % (
            b"floats" if self._is_list else b"by_type",
            msgspec.json.encode(request.request_id),
        )
        if self._is_list:
            yield from _vectors(request, "float")
        else:
            before = b"{"
            for name in self._types:
                yield b'%b"%b":' % (before, name.encode())
                yield from _vectors(request, name)
                before = b","
            yield b"}"
        billed = {"input_tokens": token_count(request)}
        meta = {"api_version": {"version": self._version}, "billed_units": billed, "tokens": billed}
        yield b',"texts":%b,"meta":%b}' % (msgspec.json.encode(self._texts), msgspec.json.encode(meta))


def _size_bytes(name: str, dimensions: int) -> int:
    if name == "base64":
        return DTYPES["float"].size_bytes(dimensions, "base64")
    return DTYPES[name].size_bytes(dimensions, "float")


def _vectors(request: Request, name: str) -> Iterator[bytes]:
    """A list of all vectors, a row at a time: as numbers one takes five times its JSON."""
    dtype = DTYPES["float" if name == "base64" else name]
    before = b"["
    for rows, row in rows_of(request, dtype):
        yield before
        if name == "base64":
            yield b'"%b"' % b2a_base64(rows.row(row), newline=False)
        else:
            yield msgspec.json.encode(dtype.numbers(rows, row))
        before = b","
    yield b"]"
