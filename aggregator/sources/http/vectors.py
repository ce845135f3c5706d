"""Write vectors as OpenAI's, vLLM's and Voyage's clients read them."""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
from typing_extensions import override

from aggregator.request.request import Request
from aggregator.request.vector import EncodedRows, Vector, vector_bytes
from aggregator.sources.http.answer import Answer, token_count
from protos.embedding.v1 import embedding_pb2 as pb

MANY_FLOATS = 16_384
"""Written as decimal numbers on a thread: it takes some milliseconds."""
_HALF_RANGE = 0x80  # turns the sign bit of a byte over, which adds 128 or takes it away


VECTOR_BYTES, ANSWER_BYTES = 80, 1024
"""Of a response beside each vector, and beside all of them."""


def joined(pieces: Iterable[bytes]) -> bytes:
    """The pieces, which are not all held beside the whole."""
    whole = BytesIO()
    whole.writelines(pieces)
    return whole.getvalue()


@dataclass(frozen=True, slots=True)
class Dtype:
    """A vector's numbers in a response: bytes of an encoding, read as `numpy_type`.

    `is_shifted`: each byte is moved by 128, so that signed numbers become unsigned and the other way round.
    `digits`: of a number in JSON, with its comma.
    """

    encoding: pb.Encoding
    numpy_type: str
    digits: int
    is_shifted: bool = False

    def size_bytes(self, dimensions: int, form: str) -> int:
        """A vector as numbers (`float`), as base64, or as it is (`bytes`)."""
        raw = vector_bytes(dimensions, self.encoding)
        if form == "float":
            return self.digits * (raw // np.dtype(self.numpy_type).itemsize)
        return 4 * (raw // 3 + 1) if form == "base64" else raw

    def row(self, rows: EncodedRows, row: int) -> bytes:
        data = rows.row(row)
        return (np.frombuffer(data, np.uint8) ^ _HALF_RANGE).tobytes() if self.is_shifted else data

    def numbers(self, rows: EncodedRows, row: int) -> list[Any]:
        return np.frombuffer(self.row(rows, row), self.numpy_type).tolist()  # type: ignore[no-any-return]


DTYPES = {
    "float": Dtype(pb.ENCODING_FLOAT32, "<f4", 22),
    "float16": Dtype(pb.ENCODING_FLOAT16, "<f2", 20),
    "int8": Dtype(pb.ENCODING_INT8, "i1", 5),
    "uint8": Dtype(pb.ENCODING_INT8, "u1", 4, is_shifted=True),
    "binary": Dtype(pb.ENCODING_BINARY, "i1", 5, is_shifted=True),
    "ubinary": Dtype(pb.ENCODING_BINARY, "u1", 4),
}


def vectors_of(request: Request, dtype: Dtype) -> Iterator[tuple[EncodedRows, Vector]]:
    """Each input's result with the encoded rows of its batch."""
    options = request.options
    rows: EncodedRows | None = None
    batch = None
    for outcome in request.outcomes:
        assert isinstance(outcome, Vector), "A request with a failure was answered with vectors. This is a bug."
        if outcome.batch is not batch or rows is None:
            batch = outcome.batch
            rows = batch.rows(options.dimensions, dtype.encoding, normalize=bool(options.normalize))
        yield rows, outcome


def rows_of(request: Request, dtype: Dtype) -> Iterator[tuple[EncodedRows, int]]:
    """The place of each vector in the encoded rows of its batch."""
    for rows, outcome in vectors_of(request, dtype):
        for row in outcome.rows:
            yield rows, row


def _model(request: Request) -> str:
    outcome = request.outcomes[0]
    assert isinstance(outcome, Vector), "A request with a failure was answered with vectors. This is a bug."
    return outcome.batch.model


class VectorList(Answer):
    """A list of objects with a vector each: numbers, base64, or what vLLM calls bytes."""

    def __init__(self, ignored: str, dtype: str, encoding_format: str, *, is_swapped: bool) -> None:
        super().__init__(ignored)
        self._dtype_name, self._dtype = dtype, DTYPES[dtype]
        self._format = encoding_format
        self._is_swapped = is_swapped
        if encoding_format.startswith("bytes"):
            self.content_type = "application/octet-stream"

    @property
    def encoding(self) -> pb.Encoding:
        return self._dtype.encoding

    @override
    def takes_long(self, request: Request) -> bool:
        as_numbers = self._format == "float" and request.vector_count * request.options.dimensions > MANY_FLOATS
        return as_numbers or super().takes_long(request)

    @override
    def size_bytes(self, request: Request) -> int:
        form = "bytes" if self._format.startswith("bytes") else self._format
        row = VECTOR_BYTES + self._dtype.size_bytes(request.options.dimensions, form)
        return ANSWER_BYTES + request.vector_count * row

    @override
    def write(self, request: Request) -> bytes:
        if self._format.startswith("bytes"):
            return joined(self._bytes(rows, row) for rows, row in rows_of(request, self._dtype))
        return joined(self._pieces(request))

    def _pieces(self, request: Request) -> Iterator[bytes]:
        yield b'{"object":"list","data":'
        yield from self._data(request)
        yield b',"model":%b,"usage":%b,"id":%b}' % (
            msgspec.json.encode(_model(request)),
            msgspec.json.encode(_usage(request)),
            msgspec.json.encode(request.request_id),
        )

    def _data(self, request: Request) -> Iterator[bytes]:
        return self._listed(rows_of(request, self._dtype))

    def _listed(self, vectors: Iterable[tuple[EncodedRows, int]]) -> Iterator[bytes]:
        before = b'[{"object":"embedding","index":'
        for index, (rows, row) in enumerate(vectors):
            yield b'%b%d,"embedding":' % (before, index)
            if self._format == "base64":
                yield b'"%b"' % b2a_base64(self._bytes(rows, row), newline=False)
            else:
                yield msgspec.json.encode(self._dtype.numbers(rows, row))
            if rows.scales is not None:
                yield b',"scale":%r' % rows.scale(row)
            before = b'},{"object":"embedding","index":'
        yield b"}]"

    def _bytes(self, rows: EncodedRows, row: int) -> bytes:
        data = self._dtype.row(rows, row)
        return np.frombuffer(data, self._dtype.numpy_type).byteswap().tobytes() if self._is_swapped else data

    @override
    def headers(self, request: Request) -> dict[str, str]:
        headers = super().headers(request)
        if self._format == "bytes":
            headers["metadata"] = json.dumps(self._metadata(request))
        return headers

    def _metadata(self, request: Request) -> dict[str, Any]:
        """Describe the bytes as vLLM does."""
        data: list[dict[str, Any]] = []
        start = 0
        for index, (rows, _) in enumerate(rows_of(request, self._dtype)):
            end = start + rows.row_bytes
            data.append(
                {
                    "index": index,
                    "embed_dtype": "float32" if self._dtype_name == "float" else self._dtype_name,
                    "endianness": "big" if self._is_swapped else "little",
                    "start": start,
                    "end": end,
                    "shape": [rows.row_bytes // np.dtype(self._dtype.numpy_type).itemsize],
                }
            )
            start = end
        return {"id": request.request_id, "model": _model(request), "data": data, "usage": _usage(request)}


def _usage(request: Request) -> dict[str, int]:
    count = token_count(request)
    return {"prompt_tokens": count, "total_tokens": count}
