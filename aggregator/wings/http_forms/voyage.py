"""Documents in chunks, as Voyage's clients send them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from typing_extensions import override

from aggregator.request.request import Defaults, Request
from aggregator.sources.http.answer import AskedPriority, Ignored, priority_of
from aggregator.sources.http.embeddings import FEWER_CHUNKS, INPUT_TYPES, Number
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.sources.http.vectors import VectorList, vectors_of
from aggregator.sources.wire.message import check_count
from protos.embedding.v1 import embedding_pb2 as pb


class DocumentsBody(Ignored, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/contextualizedembeddings`, as Voyage has it: the chunks of each document."""

    remedies: ClassVar[Mapping[str, str]] = {
        "chunk_size": "the chunks are the caller's: pass Voyage's client a chunk_fn",
        "enable_auto_chunking": "the chunks are the caller's: pass Voyage's client a chunk_fn",
        "input": "send inputs, the chunks of each document",
        "truncation": "a document in chunks is not truncated: send fewer of its chunks",
    }

    inputs: Annotated[list[list[str]], msgspec.Meta(min_length=1, description="a list of the chunks of each document")]
    model: str | None = None
    input_type: Literal["query", "document"] | None = None
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = None
    output_dimension: Number | None = None
    encoding_format: Literal["base64"] | None = None
    priority: AskedPriority = None


_DOCUMENTS_BODY = msgspec.json.Decoder(DocumentsBody)


def read_documents(data: bytes, defaults: Defaults, request_id: str) -> tuple[pb.EmbedRequest, DocumentList]:
    """The message for a body, and how it is answered. A query by itself is embedded whole. Raises FieldError."""
    asked = decode_body(_DOCUMENTS_BODY, data)
    check_count(len(asked.inputs), defaults.max_inputs, "documents", "inputs", FieldError)
    chunks = sum(map(len, asked.inputs))
    check_count(chunks, defaults.max_inputs, "chunks", "inputs", FieldError)
    answer = DocumentList(asked.ignored(), asked.output_dtype or "float", asked.encoding_format or "float")
    message = pb.EmbedRequest(
        request_id=request_id,
        model=asked.model or "",
        inputs=[
            pb.Input(text=texts[0])
            if asked.input_type == "query" and len(texts) == 1
            else pb.Input(chunks=pb.Chunks(texts=texts))
            for texts in asked.inputs
        ],
        input_type=INPUT_TYPES[asked.input_type],
        priority=priority_of(asked.priority, defaults.priority),
        dimensions=asked.output_dimension or 0,
        encoding=answer.encoding,
    )
    return message, answer


class DocumentList(VectorList):
    """Voyage's form of documents in chunks: a list of the chunks' vectors for each."""

    inputs = "inputs"
    remedy = FEWER_CHUNKS
    names: Mapping[str, str] = {"dimensions": "output_dimension"}

    def __init__(self, ignored: str, dtype: str, encoding_format: str) -> None:
        super().__init__(ignored, dtype, encoding_format, is_swapped=False)

    @override
    def _data(self, request: Request) -> Iterator[bytes]:
        before = b'[{"object":"list","data":'
        for index, (rows, document) in enumerate(vectors_of(request, self._dtype)):
            yield before
            yield from self._listed((rows, row) for row in document.rows)
            yield b',"index":%d' % index
            before = b'},{"object":"list","data":'
        yield b"}]"
