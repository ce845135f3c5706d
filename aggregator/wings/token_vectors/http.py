"""Read the bodies of /pooling, as vLLM's clients send them, and answer with a vector a token, or weights."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator, Mapping
from time import time
from typing import Annotated, ClassVar, Literal

import msgspec
from typing_extensions import override

from aggregator.request.request import MAX_INPUTS, Defaults, Request
from aggregator.request.vector import Vector
from aggregator.sources.http.answer import (
    Answer,
    AskedPriority,
    Form,
    Ignored,
    checked_id,
    priority_of,
    token_count,
)
from aggregator.sources.http.embeddings import INPUT_TYPES
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.http.vectors import ANSWER_BYTES, DTYPES, MANY_FLOATS, VECTOR_BYTES, joined
from aggregator.sources.wire.fields import MAX_INT32
from aggregator.sources.wire.message import check_count
from aggregator.wings.token_vectors.kind import TOKEN_VECTORS, rows_of
from aggregator.wings.token_vectors.sequences import sequences_of
from aggregator.wings.token_vectors.wire import vectors_of, weights_of
from protos.embedding.v1 import embedding_pb2 as pb

_BASE64_BYTES = 6
"""Of a number, at most: with what fills it up."""
_ID_DIGITS = 12
"""Of a token id in JSON, with its comma."""


class PoolingBody(Ignored, kw_only=True, forbid_unknown_fields=True):
    """`POST /pooling`: vLLM's fields, and `input_type`, which says whose rules make tokens of a text."""

    remedies: ClassVar[Mapping[str, str]] = {
        "add_special_tokens": "the model's special tokens are always added; leave it out",
        "messages": "send the text as input",
        "truncation_side": "a text is cut at its end; leave it out",
        "use_activation": "normalize says it",
    }
    """Of fields of other APIs that are not supported."""

    input: Annotated[str | list[str], msgspec.Meta(description="a text or a list of texts")]
    model: str | None = None
    task: Literal["token_embed", "token_classify"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    input_type: Literal["query", "document"] | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=MAX_INT32)] | None = None
    user: str | None = None
    request_id: str | None = None
    priority: AskedPriority = None


_POOLING = msgspec.json.Decoder(PoolingBody)


def read_pooling(data: bytes, defaults: Defaults, request_id: str) -> tuple[pb.EmbedRequest, Answer]:
    """The message for a body, and how it is answered. Raises FieldError."""
    asked = decode_body(_POOLING, data)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    check_count(len(texts), MAX_INPUTS, "inputs", "input", FieldError)
    if asked.truncate_prompt_tokens == 0:
        raise FieldError(
            "expected -1, which truncates to what the model takes, or 1 and more", "truncate_prompt_tokens"
        )
    truncate = pb.TRUNCATE_NONE if asked.truncate_prompt_tokens is None else pb.TRUNCATE_END
    message = pb.EmbedRequest(
        request_id=checked_id(asked.request_id) or request_id,
        model=asked.model or "",
        inputs=[pb.Input(text=text) for text in texts],
        input_type=INPUT_TYPES[asked.input_type],
        priority=priority_of(asked.priority, defaults.priority),
        truncate=truncate,
        truncate_to=max(0, asked.truncate_prompt_tokens or 0),
        tenant=asked.user or "",
    )
    if asked.normalize is not None:
        message.normalize = asked.normalize
    return message, TokenLists(asked.ignored(), is_base64=asked.encoding_format == "base64")


class TokenLists(Answer):
    """vLLM's form of a vector a token: rows of numbers, or of float32 in base64 one behind the other.

    Weights have the names that vector databases give them: `indices` (token ids) and `values`.
    """

    names: Mapping[str, str] = {"truncate_to": "truncate_prompt_tokens"}

    def __init__(self, ignored: str, *, is_base64: bool) -> None:
        super().__init__(ignored)
        self._is_base64 = is_base64

    @override
    def takes_long(self, request: Request) -> bool:
        is_long = not self._is_base64 and self._numbers(request) > MANY_FLOATS
        return is_long or super().takes_long(request)

    @override
    def size_bytes(self, request: Request) -> int:
        number_bytes = _BASE64_BYTES if self._is_base64 else DTYPES["float"].digits
        if sequences_of(request).weights:
            number_bytes = DTYPES["float"].digits + _ID_DIGITS
        return ANSWER_BYTES + len(request.inputs) * VECTOR_BYTES + self._numbers(request) * number_bytes

    @staticmethod
    def _numbers(request: Request) -> int:
        """Components of all vectors, or weights."""
        return rows_of(request) * request.options.dimensions

    @override
    def write(self, request: Request) -> bytes:
        return joined(self._pieces(request))

    def _pieces(self, request: Request) -> Iterator[bytes]:
        count = token_count(request)
        model = next(each.batch.model for each in request.outcomes if isinstance(each, Vector))
        head = {"id": request.request_id, "object": "list", "created": int(time()), "model": model}
        yield msgspec.json.encode(head)[:-1] + b',"data":'
        before = b"["
        for index, found in enumerate(request.outcomes):
            yield before
            yield from self._one(request, index, found)
            before = b","
        yield b'],"usage":%b}' % msgspec.json.encode({"prompt_tokens": count, "total_tokens": count})

    def _one(self, request: Request, index: int, found: object) -> Iterator[bytes]:
        """The object of one text, a vector at a time: as numbers it takes five times its JSON."""
        assert isinstance(found, Vector), "An answer was written whose input failed. This is a bug."
        made = sequences_of(request)
        if made.weights:
            ids, weights = weights_of(made, index, found)
            yield msgspec.json.encode({"index": index, "object": "sparse", "indices": ids, "values": weights})
            return
        yield b'{"index":%d,"object":"pooling","data":' % index
        vectors = vectors_of(request, found)
        if self._is_base64:
            yield b'"%b"}' % b2a_base64(vectors.tobytes(), newline=False)
            return
        before = b"["
        for vector in vectors:
            yield before + msgspec.json.encode(vector.tolist())
            before = b","
        yield b"]}"


ROUTES: Mapping[str, Form] = {
    "/pooling": (TOKEN_VECTORS, read_pooling),
}
