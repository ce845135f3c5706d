"""Finish a batch's vectors as each request asks: dimensions, normalisation, encoding; once per batch, not per query."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from protos.embedding.v1 import embedding_pb2 as pb

_BITS: dict[int, int] = {
    pb.ENCODING_FLOAT32: 32,
    pb.ENCODING_FLOAT16: 16,
    pb.ENCODING_INT8: 8,
    pb.ENCODING_BINARY: 1,
}

Float32Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """A whole matrix in one encoding: row i is `data[i * row_bytes:(i + 1) * row_bytes]`."""

    data: bytes
    row_bytes: int
    dimensions: int
    scales: tuple[float, ...] | None

    def row(self, index: int) -> bytes:
        start = index * self.row_bytes
        return self.data[start : start + self.row_bytes]

    def scale(self, index: int) -> float:
        """The factor of an int8 vector's values / 127; 0 for the other encodings."""
        return self.scales[index] if self.scales is not None else 0.0


@dataclass(slots=True, eq=False)
class CompletedBatch:
    """The result of one batch: pooled vectors, float32 [rows, dimensions], not normalised.

    `carried_s` is its time besides waiting and computing: network, encoding and decoding. It came back at `done_s`.
    `labels`: of a classifier's columns. `cached`: its vectors were computed before, for other requests. `shared` caches
    the common part of the responses to its requests.
    """

    batch_id: str
    model: str
    model_revision: str
    attempt: int
    matrix: Float32Matrix
    batched_s: float
    inference_s: float
    carried_s: float = 0.0
    done_s: float = 0.0
    labels: tuple[str, ...] = ()
    cached: bool = False
    shared: dict[int, Any] = field(default_factory=dict[int, Any])
    _encoded: dict[tuple[int, int, bool], EncodedRows] = field(default_factory=dict)
    _emptied: CompletedBatch | None = None

    @property
    def emptied(self) -> CompletedBatch:
        """The same without its matrix."""
        if self._emptied is None:
            nothing = self.matrix[:0]
            self._emptied = replace(self, matrix=nothing.copy(), shared={}, _encoded={}, _emptied=None)
            self._emptied._emptied = self._emptied  # noqa: SLF001 - of its own class
        return self._emptied

    def rows(self, dimensions: int, encoding: int, *, normalize: bool) -> EncodedRows:
        """The batch's rows, shortened to `dimensions` (0: all), then normalised if asked, then encoded."""
        key = (dimensions, encoding, normalize)
        rows = self._encoded.get(key)
        if rows is None:
            rows = self._encoded[key] = _encode(_shape(self.matrix, dimensions, normalize=normalize), encoding)
        return rows


@dataclass(slots=True, eq=False)  # one per query: a frozen one costs four times as much to make
class Vector:
    """One input's result: a row of a completed batch; of a document, as many as it has `chunks` from there on."""

    batch: CompletedBatch
    row: int
    token_count: int
    queued_s: float
    chunks: int = 0

    @property
    def rows(self) -> range:
        return range(self.row, self.row + max(1, self.chunks))


def vector_bytes(dimensions: int, encoding: int) -> int:
    return (dimensions * _BITS[encoding] + 7) // 8


def _shape(matrix: Float32Matrix, dimensions: int, *, normalize: bool) -> Float32Matrix:
    if dimensions:
        matrix = matrix[:, :dimensions]
    if normalize:
        norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix))
        matrix = matrix / np.maximum(norms, np.float32(1e-12))[:, None]
    return np.ascontiguousarray(matrix, dtype="<f4")


def _encode(matrix: Float32Matrix, encoding: int) -> EncodedRows:
    dimensions = matrix.shape[1]
    if encoding == pb.ENCODING_FLOAT16:
        return EncodedRows(matrix.astype("<f2").tobytes(), 2 * dimensions, dimensions, None)
    if encoding == pb.ENCODING_INT8:
        scales = np.maximum(np.abs(matrix).max(axis=1), np.float32(1e-12))
        values = np.rint(matrix * (127.0 / scales)[:, None]).astype(np.int8)
        return EncodedRows(values.tobytes(), dimensions, dimensions, tuple(map(float, scales)))
    if encoding == pb.ENCODING_BINARY:
        return EncodedRows(np.packbits(matrix >= 0, axis=1).tobytes(), (dimensions + 7) // 8, dimensions, None)
    return EncodedRows(matrix.tobytes(), 4 * dimensions, dimensions, None)
