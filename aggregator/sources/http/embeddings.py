"""OpenAI's embeddings request and response: JSON in, JSON out."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal, cast

import msgspec
import numpy as np

from aggregator.errors import Code, shown
from aggregator.request.request import Defaults, Failure, Request
from aggregator.request.vector import EncodedRows, Vector
from aggregator.scheduler.work_item import Task
from aggregator.sources.calls.models import ServedModels, ServedTask
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode
from aggregator.sources.wire.decode import MAX_TOKEN_IDS
from protos.embedding.v1 import embedding_pb2 as pb

PRIORITIES = {
    None: pb.PRIORITY_UNSPECIFIED,
    "interactive": pb.PRIORITY_INTERACTIVE,
    "default": pb.PRIORITY_DEFAULT,
    "background": pb.PRIORITY_BACKGROUND,
}
_INPUT_TYPES = {
    None: pb.INPUT_TYPE_UNSPECIFIED,
    "query": pb.INPUT_TYPE_QUERY,
    "document": pb.INPUT_TYPE_DOCUMENT,
}
_ENCODINGS = {"float": pb.ENCODING_FLOAT32, "int8": pb.ENCODING_INT8, "binary": pb.ENCODING_BINARY}
_OF_INPUTS = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.INTERNAL})
_MAX_DIMENSIONS = 2**31 - 1
_MAX_TOKEN_ID = _MAX_TOKENS = 2**31 - 1
_FIRST_ELEMENT = re.compile(rb"\[\s*(.?)", re.DOTALL)
FOREIGN_IDS = (
    "token ids are not taken, as they may be another model's: send text. In LangChain's OpenAIEmbeddings set"
    " check_embedding_ctx_length=False. For ids of the model's own tokenizer, name it in the field tokenizer"
    " (GET /v1/models shows it)"
)


class EmbeddingsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's fields, then those of other servers and of this one."""

    input: msgspec.Raw
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=_MAX_DIMENSIONS)] | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=_MAX_TOKENS)] | None = None
    input_type: Literal["query", "document"] | None = None
    normalize: bool | None = None
    priority: Literal["interactive", "default", "background"] | None = None
    embedding_types: Annotated[list[Literal["float", "int8", "binary"]], msgspec.Meta(max_length=1)] | None = None
    tokenizer: str | None = None


_TokenId = Annotated[int, msgspec.Meta(ge=0, le=_MAX_TOKEN_ID)]
_REQUEST = msgspec.json.Decoder(EmbeddingsRequest)
_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[_TokenId])
_MANY_IDS = msgspec.json.Decoder(list[list[_TokenId]])


class Revisions:
    """Finds the model revision whose tokenizer made token ids."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def of_tokenizer(self, tokenizer: str, name: str, task: Task) -> str:
        """The revision to pin so that ids are read by their own tokenizer; none where all revisions have it."""
        model: ServedTask = self._models.find(name, task)
        served = {revision: each.description.tokenizer_fingerprint for revision, each in model.revisions.items()}
        fits = [revision for revision, fingerprint in served.items() if fingerprint == tokenizer]
        if not fits and served:
            known = ", ".join(dict.fromkeys(served.values()))
            raise FieldError(f"{shown(tokenizer)} is not the tokenizer of {model.name}: that is {known}", "tokenizer")
        return fits[0] if len(fits) < len(served) else ""


class EmbeddingsReader:
    """Reads bodies. `trusts_token_ids`: ids are taken to be the model's own."""

    def __init__(self, revisions: Revisions, *, trusts_token_ids: bool) -> None:
        self._revisions = revisions
        self._trusts_token_ids = trusts_token_ids

    def __call__(self, data: bytes, defaults: Defaults, request_id: str) -> tuple[pb.EmbedRequest, EmbeddingsRequest]:
        """The message for a body, and what it was made of. Raises TokenbatchError."""
        asked = decode(_REQUEST, data)
        if asked.truncate_prompt_tokens == 0:
            raise FieldError(
                "expected -1, which truncates to what the model takes, or 1 and more", "truncate_prompt_tokens"
            )
        message = pb.EmbedRequest(
            request_id=request_id,
            model=asked.model or "",
            inputs=self._inputs(asked, defaults.max_inputs),
            input_type=_INPUT_TYPES[asked.input_type],
            priority=PRIORITIES[asked.priority],
            dimensions=asked.dimensions or 0,
            encoding=_ENCODINGS[asked.embedding_types[0] if asked.embedding_types else "float"],
            truncate=pb.TRUNCATE_NONE if asked.truncate_prompt_tokens is None else pb.TRUNCATE_END,
            truncate_to=max(0, asked.truncate_prompt_tokens or 0),  # -1: to what the model takes
            tenant=asked.user or "",
        )
        if asked.normalize is not None:
            message.normalize = asked.normalize
        if asked.tokenizer:
            message.model_revision = self._revisions.of_tokenizer(
                asked.tokenizer, message.model or defaults.model, Task.EMBED
            )
        return message, asked

    def _inputs(self, asked: EmbeddingsRequest, max_inputs: int) -> Sequence[pb.Input]:
        """One text, several, or token ids. Raises FieldError."""
        raw = memoryview(asked.input)
        kind = bytes(raw[:1])
        if kind == b'"':
            return (pb.Input(text=decode(_TEXT, raw, "input")),)
        if raw.nbytes > 2 * max_inputs:
            check_size(bytes(raw), max_inputs)
        found = _FIRST_ELEMENT.match(raw)
        if found is None:
            raise FieldError("expected a string or a list of strings", "input")
        first = found.group(1)
        if first == b"]":
            raise FieldError("the list is empty: at least one input is needed", "input")
        check_nesting(bytes(raw), "input")
        if first == b"[" or first.isdigit() or first == b"-":
            if not (self._trusts_token_ids or asked.tokenizer):
                raise FieldError(FOREIGN_IDS, "input")
            many = decode(_MANY_IDS, raw, "input") if first == b"[" else [decode(_IDS, raw, "input")]
            return [pb.Input(token_ids=pb.TokenIds(ids=ids)) for ids in many]
        return [pb.Input(text=text) for text in decode(_TEXTS, raw, "input")]


def check_nesting(raw: bytes, field: str) -> None:
    """Raises FieldError for texts in a list within the list."""
    inner = raw.lstrip(b"[ \t\r\n")
    if inner[:1] == b'"' and raw.count(b"[", 0, len(raw) - len(inner)) > 1:
        raise FieldError("a list of texts within a list: send one list of texts", field)


def check_size(raw: bytes, max_inputs: int) -> None:
    """Raises FieldError for a list that holds too much, before it is decoded. One that passes may still hold too much.

    Of a text's two quotes the first has no backslash before it; a quote that has one is part of a text, or its end.
    """
    quotes = raw.count(b'"')
    inputs = (quotes - raw.count(b'\\"') + 1) // 2 if quotes else raw.count(b"[") - 1
    if inputs > max_inputs:
        raise FieldError(f"at least {inputs} inputs: at most {max_inputs} are taken", "input")
    if not quotes and raw.count(b",") > MAX_TOKEN_IDS + max_inputs:
        raise FieldError(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request", "input")


def response(request: Request, *, as_base64: bool) -> bytes:
    return b"".join(_pieces(request, as_base64=as_base64))


def _pieces(request: Request, *, as_base64: bool) -> Iterator[bytes]:
    options = request.options
    write = _as_base64 if as_base64 or options.encoding != pb.ENCODING_FLOAT32 else _as_floats
    rows: EncodedRows | None = None
    token_count = 0
    batch = None
    before = b'{"object":"list","data":[{"object":"embedding","index":'
    for index, outcome in enumerate(request.outcomes):
        assert isinstance(outcome, Vector), "A request with a failure was answered with vectors. This is a bug."
        if outcome.batch is not batch or rows is None:
            batch = outcome.batch
            rows = batch.rows(options.dimensions, options.encoding, normalize=bool(options.normalize))
        yield b'%b%d,"embedding":' % (before, index)
        yield write(rows, outcome.row)
        if rows.scales is not None:
            yield b',"scale":%r' % rows.scale(outcome.row)
        token_count += outcome.token_count
        before = b'},{"object":"embedding","index":'
    assert batch is not None, "A request without an input was answered. This is a bug."
    yield b'}],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (
        msgspec.json.encode(batch.model),
        token_count,
        token_count,
    )


def _as_base64(rows: EncodedRows, row: int) -> bytes:
    return b'"%b"' % b2a_base64(rows.row(row), newline=False)


def _as_floats(rows: EncodedRows, row: int) -> bytes:
    return msgspec.json.encode(np.frombuffer(rows.row(row), "<f4").tolist())


def failed_input(request: Request) -> Failure | None:
    """The first failure; None when every input has a vector. Of several inputs it names the one at fault."""
    if not request.failed:
        return None
    outcomes = request.outcomes
    index = next(index for index, outcome in enumerate(outcomes) if isinstance(outcome, Failure))
    failure = cast("Failure", outcomes[index])
    of_input = failure.code in _OF_INPUTS and (len(outcomes) == 1 or any(each is not failure for each in outcomes))
    if failure.field or not of_input:
        return failure
    message = failure.message
    if failure.code == Code.OUT_OF_RANGE:
        message = f"{message.partition(';')[0]}; send less, or set truncate_prompt_tokens to -1"
    if len(outcomes) == 1:
        return replace(failure, message=message, field="input")
    return replace(failure, message=f"input[{index}]: {message}", field=f"input[{index}]")


def timing_headers(request: Request) -> dict[str, str]:
    """Where the time went, of the input that waited longest."""
    slowest: Vector | None = None
    for outcome in request.outcomes:
        if isinstance(outcome, Vector) and (slowest is None or outcome.queued_s > slowest.queued_s):
            slowest = outcome
    if slowest is None:
        return {}
    batch = slowest.batch
    queued, batched, inference = (f"{s * 1e3:.2f}" for s in (slowest.queued_s, batch.batched_s, batch.inference_s))
    return {
        "server-timing": f"queue;dur={queued}, batch;dur={batched}, inference;dur={inference}",
        "x-tokenbatch-queued-ms": queued,
        "x-tokenbatch-batched-ms": batched,
        "x-tokenbatch-inference-ms": inference,
    }
