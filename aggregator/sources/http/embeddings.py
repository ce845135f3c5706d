"""Read the bodies of /v1/embeddings, as OpenAI's, vLLM's and Voyage's clients send it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from aggregator.admission.models import Models
from aggregator.errors import shown
from aggregator.request.request import Defaults
from aggregator.scheduler.work_item import DEFAULT_TASK, Task
from aggregator.sources.http.answer import AskedPriority, Ignored, checked_id, priority_of
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.http.vectors import VectorList
from aggregator.sources.wire.decode import MAX_TOKEN_IDS
from aggregator.sources.wire.fields import MAX_INT32
from aggregator.sources.wire.message import check_count
from protos.embedding.v1 import embedding_pb2 as pb

INPUT_TYPES = {
    None: pb.INPUT_TYPE_UNSPECIFIED,
    "query": pb.INPUT_TYPE_QUERY,
    "document": pb.INPUT_TYPE_DOCUMENT,
}
_FIRST_ELEMENT = re.compile(rb"\[\s*(.?)", re.DOTALL)
FOREIGN_IDS = (
    "token ids are not taken, as they may be another model's: send text. In LangChain's OpenAIEmbeddings set"
    " check_embedding_ctx_length=False. For ids of the model's own tokenizer, name it in the field tokenizer"
    " (GET /v1/models shows it)"
)
FEWER_CHUNKS = "fewer chunks of the document at once"
"""What helps a document in chunks that is too long."""
_MOST_DESCRIBED = 512
"""Vectors as bytes whose places one header names: 120 bytes each, and Python's http.client reads a line of 64 KiB."""
Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT32)]
TEXT_SCHEMA = {"type": "string"}
IDS_SCHEMA = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": MAX_INT32}}
_INPUTS = {
    "anyOf": [
        TEXT_SCHEMA,
        {"type": "array", "minItems": 1, "items": TEXT_SCHEMA},
        IDS_SCHEMA,
        {"type": "array", "minItems": 1, "items": IDS_SCHEMA},
    ]
}
"""What is decoded by hand, as a JSON schema."""


class EmbeddingsRequest(Ignored, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields, then vLLM's, Voyage's, and those of this one."""

    remedies: ClassVar[Mapping[str, str]] = {
        "embedding_type": "output_dtype says it",
        "embedding_types": "output_dtype says it; POST /v2/embed takes Cohere's",
        "images": "texts alone are embedded",
        "messages": "send the text as input",
        "normalized": "normalize says it",
        "prompt": "send it as input",
        "return_multivector": "a text gets one vector; leave it out",
        "task": "input_type says it, query or document",
        "texts": "send them as input; POST /v2/embed takes Cohere's",
        "truncate": "truncation says it, true or false",
    }
    """Of fields of other APIs that are not supported."""

    input: Annotated[msgspec.Raw, msgspec.Meta(description="a text or a list of texts", extra_json_schema=_INPUTS)]
    model: str | None = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    dimensions: Number | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=MAX_INT32)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    padding: Literal["do_not_pad"] | None = None
    request_id: str | None = None
    priority: AskedPriority = None
    embed_dtype: Literal["float32", "float16"] | None = None
    endianness: Literal["native", "big", "little"] | None = None
    use_activation: bool | None = None
    truncation: bool | None = None
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = None
    output_dimension: Number | None = None
    input_type: Literal["query", "document"] | None = None
    normalize: bool | None = None
    tokenizer: str | None = None
    late_chunking: bool | None = None

    def answer(self) -> VectorList:
        """How it is answered. `embed_dtype` and `endianness` are of base64 and bytes, as in vLLM."""
        encoding_format = self.encoding_format or "float"
        dtype: str = self.output_dtype or "float"
        if dtype == "float" and self.embed_dtype == "float16" and encoding_format != "float":
            dtype = "float16"
        found = VectorList(self.ignored(), dtype, encoding_format, is_swapped=self.endianness == "big")
        if self.truncation is not None:
            found.remedy = "set truncation to true"
        if self.late_chunking:
            found.remedy = FEWER_CHUNKS
        if self.output_dimension:
            found.names = {"dimensions": "output_dimension"}
        return found

    def truncated(self) -> pb.Truncate:
        if self.truncate_prompt_tokens is None and not self.truncation:
            return pb.TRUNCATE_NONE
        return pb.TRUNCATE_START if self.truncation_side == "left" else pb.TRUNCATE_END

    def check(self) -> None:
        """Raises FieldError for invalid values that the fields' types allow."""
        if self.truncate_prompt_tokens == 0:
            raise FieldError(
                "expected -1, which truncates to what the model takes, or 1 and more", "truncate_prompt_tokens"
            )
        if self.add_special_tokens is False:
            raise FieldError(
                "the model's special tokens are always added to a text: send token ids where they must not be",
                "add_special_tokens",
            )
        if self.late_chunking and self.truncated() != pb.TRUNCATE_NONE:
            raise FieldError("a document in chunks is not truncated: send fewer of its chunks", "late_chunking")
        if self.dimensions and self.output_dimension:
            raise FieldError("output_dimension and dimensions say the same: send one of them", "output_dimension")


_TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]
_REQUEST = msgspec.json.Decoder(EmbeddingsRequest)
_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[_TokenId])
_MANY_IDS = msgspec.json.Decoder(list[list[_TokenId]])


class Revisions:
    """Finds the model revision whose tokenizer made token ids."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def of_tokenizer(self, tokenizer: str, name: str, task: Task) -> str:
        """The revision to pin so that ids are read by their own tokenizer; none where all revisions have it."""
        model = self._models.find(name, task)
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

    def __call__(self, data: bytes, defaults: Defaults, request_id: str) -> tuple[pb.EmbedRequest, VectorList]:
        """The message for a body, and how it is answered. Raises TokenbatchError."""
        asked = decode_body(_REQUEST, data)
        asked.check()
        answer = asked.answer()
        normalize = asked.use_activation if asked.normalize is None else asked.normalize
        message = pb.EmbedRequest(
            request_id=checked_id(asked.request_id) or request_id,
            model=asked.model or "",
            inputs=self._inputs(asked, defaults.max_inputs),
            input_type=INPUT_TYPES[asked.input_type],
            priority=priority_of(asked.priority, defaults.priority),
            dimensions=asked.dimensions or asked.output_dimension or 0,
            encoding=answer.encoding,
            truncate=asked.truncated(),
            truncate_to=max(0, asked.truncate_prompt_tokens or 0),  # -1: to what the model takes
            tenant=asked.user or "",
        )
        if asked.encoding_format == "bytes":
            _check_described(message)
        if normalize is not None:
            message.normalize = normalize
        if asked.tokenizer:
            message.model_revision = self._revisions.of_tokenizer(
                asked.tokenizer, message.model or defaults.model, DEFAULT_TASK
            )
        return message, answer

    def _inputs(self, asked: EmbeddingsRequest, max_inputs: int) -> Sequence[pb.Input]:
        """One text, several, or token ids. Raises FieldError."""
        raw = memoryview(asked.input)
        kind = bytes(raw[:1])
        if kind == b'"':
            text = decode_body(_TEXT, raw, "input")
            return (pb.Input(chunks=pb.Chunks(texts=(text,))) if asked.late_chunking else pb.Input(text=text),)
        if raw.nbytes > 2 * max_inputs:
            check_size(bytes(raw), max_inputs)
        found = _FIRST_ELEMENT.match(raw)
        if found is None:
            raise FieldError("expected a text or a list of texts", "input")
        first = found.group(1)
        if first == b"]":
            raise FieldError("input is empty: send at least one text", "input")
        check_nesting(bytes(raw), "input")
        if first == b"[" or first.isdigit() or first == b"-":
            if not (self._trusts_token_ids or asked.tokenizer):
                raise FieldError(FOREIGN_IDS, "input")
            many = decode_body(_MANY_IDS, raw, "input") if first == b"[" else [decode_body(_IDS, raw, "input")]
            if asked.late_chunking:
                raise FieldError("expected the texts of a document's chunks, as late_chunking is set", "input")
            check_count(len(many), max_inputs, "inputs", "input", FieldError)
            return [pb.Input(token_ids=pb.TokenIds(ids=ids)) for ids in many]
        texts = decode_body(_TEXTS, raw, "input")
        check_count(len(texts), max_inputs, "inputs", "input", FieldError)
        if asked.late_chunking:
            return (pb.Input(chunks=pb.Chunks(texts=texts)),)
        return [pb.Input(text=text) for text in texts]


def _check_described(message: pb.EmbedRequest) -> None:
    """Raises FieldError for more vectors than a header can describe."""
    count = sum(len(each.chunks.texts) or 1 for each in message.inputs)
    if count > _MOST_DESCRIBED:
        raise FieldError(
            f"bytes describes its vectors in a header, {_MOST_DESCRIBED} at most, got {count}: send fewer inputs, or"
            " ask for bytes_only or base64",
            "encoding_format",
        )


def check_nesting(raw: bytes, field: str) -> None:
    """Raises FieldError for texts in a list within the list."""
    inner = raw.lstrip(b"[ \t\r\n")
    if inner[:1] == b'"' and raw.count(b"[", 0, len(raw) - len(inner)) > 1:
        raise FieldError("a list of texts within a list: send one list of texts", field)


def check_size(raw: bytes, max_inputs: int) -> None:
    """Raises FieldError for a list that holds too much, before it is decoded; a list that passes may still do so.

    Of a text's two quotes the first has no backslash before it; a quote that has one is part of a text, or its end.
    """
    quotes = raw.count(b'"')
    inputs = (quotes - raw.count(b'\\"') + 1) // 2 if quotes else raw.count(b"[") - 1
    if inputs > max_inputs:
        raise FieldError(f"at least {inputs} inputs: at most {max_inputs} are taken", "input")
    if not quotes and raw.count(b",") > MAX_TOKEN_IDS + max_inputs:
        raise FieldError(f"more than {MAX_TOKEN_IDS} token ids: send fewer in one request", "input")
