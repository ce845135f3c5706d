"""Decode a batch from the wire and check every query of it before an engine sees any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from modelserver.engines.engine import EngineFacts, IdArray, Matrix, Spans
from modelserver.errors import InvalidBatch
from protos.modelserver.v1 import modelserver_pb2 as pb

WIRE_INT = np.dtype("<i4")
_WIRE_FLOAT = np.dtype("<f4")
BROKEN_ROW = "the engine's result is not finite, or all zero"


@dataclass(frozen=True, slots=True)
class QueryFault:
    """Why one query of a batch has no vector."""

    index: int
    code: grpc.StatusCode
    message: str


@dataclass(frozen=True, slots=True)
class Batch:
    """The valid queries of one batch, and the faults of the others.

    `token_ids` int32 [Σ lengths] and `lengths` int32 [valid queries] hold the valid ones, `second_segments` where the
    tokens of type 1 begin in each (None: nowhere), `spans` what is pooled of each (None: all of it), `positions` their
    places among the `query_count` queries that were sent (None: all are valid). `sent_rows`: how many rows each of
    those has (None: one). `isolated`: never merged with another batch. `max_step_tokens`: the sender's budget for a
    merged step.
    """

    token_ids: IdArray
    lengths: IdArray
    query_count: int
    positions: npt.NDArray[np.intp] | None
    faults: tuple[QueryFault, ...]
    isolated: bool
    max_step_tokens: int
    second_segments: IdArray | None = None
    spans: Spans | None = None
    sent_rows: IdArray | None = None

    @property
    def token_count(self) -> int:
        return self.token_ids.size

    @property
    def row_count(self) -> int:
        """The rows of its valid queries."""
        return self.lengths.size if self.spans is None else int(self.spans.rows.sum())

    @property
    def sent_row_count(self) -> int:
        return self.query_count if self.sent_rows is None else int(self.sent_rows.sum())


_PRIORITIES = frozenset((pb.PRIORITY_INTERACTIVE, pb.PRIORITY_DEFAULT, pb.PRIORITY_BACKGROUND))


def known_priority(priority: pb.Priority) -> pb.Priority:
    """The class that a sender names; the default one where it names none, or one that is not known here."""
    return priority if priority in _PRIORITIES else pb.PRIORITY_DEFAULT


def decode_batch(
    token_ids: bytes,
    lengths: bytes,
    second_segments: bytes = b"",
    span_counts: bytes = b"",
    spans: bytes = b"",
    *,
    isolated: bool,
    max_step_tokens: int,
    facts: EngineFacts,
) -> Batch:
    """The batch that these bytes (int32 little endian) hold.

    A query that is empty, too long or has an id outside the vocabulary becomes a fault and leaves the others
    alone. `max_step_tokens` 0 means the step's capacity. Raises InvalidBatch when the bytes are not a batch, and
    when it does not fit one step.
    """
    ids = _int32(token_ids, "token_ids")
    counts = _int32(lengths, "lengths")
    sizes = _sizes(ids, counts, facts)
    second = _second_segments(second_segments, counts, facts)
    pooled = _spans(span_counts, spans, counts, facts)
    rows = None if pooled is None else pooled.rows
    budget = max_step_tokens or facts.step_token_capacity
    ids_unsigned = ids.view(np.uint32)  # a negative id is a huge unsigned one
    if min(sizes) > 0 and max(sizes) <= facts.max_input_tokens and ids_unsigned.max() < facts.vocabulary_size:
        return Batch(ids, counts, counts.size, None, (), isolated, budget, second, pooled, rows)
    empty = counts == 0
    bad = empty | (counts > facts.max_input_tokens)
    bad |= _any_within(ids_unsigned >= np.uint32(facts.vocabulary_size), counts)
    faults = tuple(_fault(int(index), counts, facts, empty=bool(empty[index])) for index in np.flatnonzero(bad))
    good = ~bad
    return Batch(
        ids[np.repeat(good, counts)],
        counts[good],
        counts.size,
        np.flatnonzero(good),
        faults,
        isolated,
        budget,
        None if second is None else second[good],
        None if pooled is None else Spans(pooled.counts[good], pooled.bounds[np.repeat(good, pooled.counts)]),
        rows,
    )


def encode(
    batch: Batch, matrix: Matrix, broken: npt.NDArray[np.bool_] | None = None
) -> tuple[bytes, tuple[QueryFault, ...]]:
    """The answer's bytes (float32 little endian [sent_row_count, dimensions]) and its faults.

    `matrix` float32 [row_count, dimensions], of which the rows marked in `broken` are no result (None: all are): a
    fault of their query. The rows of a query with a fault are zero.
    """
    faults = batch.faults
    if broken is not None:
        queries = np.arange(batch.lengths.size)
        if batch.spans is not None:
            queries = np.repeat(queries, batch.spans.rows)
        failed = np.unique(queries[broken])
        places = failed if batch.positions is None else batch.positions[failed]
        faults += tuple(QueryFault(int(place), grpc.StatusCode.INTERNAL, BROKEN_ROW) for place in places)
        matrix = matrix.copy()
        matrix[np.isin(queries, failed)] = 0.0
    if batch.positions is not None:
        whole = np.zeros((batch.sent_row_count, matrix.shape[1]), _WIRE_FLOAT)
        valid = np.isin(np.arange(batch.query_count), batch.positions)
        whole[valid if batch.sent_rows is None else np.repeat(valid, batch.sent_rows)] = matrix
        matrix = whole
    return matrix.astype(_WIRE_FLOAT, copy=False).tobytes(), faults


def broken_rows(matrix: npt.NDArray[np.floating[Any]], *, zeros: bool) -> npt.NDArray[np.bool_] | None:
    """Which rows of [rows, columns] are not finite or, unless `zeros` are results, all zero; None: no row.

    The sums of squares show that none is at a third of the cost, unless they overflow or underflow.
    """
    squares = np.einsum("ij,ij->i", matrix, matrix)
    if np.isfinite(squares).all() and (zeros or bool(squares.all())):
        return None
    broken = np.logical_not(np.isfinite(matrix).all(axis=1))
    if not zeros:
        broken |= ~matrix.any(axis=1)
    return broken if broken.any() else None


def _int32(data: bytes, name: str) -> IdArray:
    if len(data) % WIRE_INT.itemsize:
        raise InvalidBatch(f"{name} has {len(data)} bytes, which is not a whole number of int32 values")
    return np.frombuffer(data, WIRE_INT).astype(np.int32, copy=False)


def _sizes(ids: IdArray, counts: IdArray, facts: EngineFacts) -> list[int]:
    """The queries' lengths. Raises InvalidBatch if they are not those of `ids`, or one step does not hold them."""
    if counts.size == 0:
        raise InvalidBatch("the batch has no queries")
    if counts.size > facts.step_query_capacity:
        raise InvalidBatch(f"{counts.size} queries are more than the {facts.step_query_capacity} that one step holds")
    sizes: list[int] = counts.tolist()
    if min(sizes) < 0:
        raise InvalidBatch("a query's length is negative")
    total = sum(sizes)
    if total != ids.size:
        raise InvalidBatch(f"the lengths sum to {total}, but there are {ids.size} token ids")
    if total > facts.step_token_capacity:
        raise InvalidBatch(f"{total} tokens are more than the {facts.step_token_capacity} that one step holds")
    return sizes


def _second_segments(data: bytes, counts: IdArray, facts: EngineFacts) -> IdArray | None:
    if not data:
        return None
    second = _int32(data, "second_segments")
    if not facts.token_types:
        raise InvalidBatch("second_segments are given, and the model served here has no token types")
    if second.size != counts.size:
        raise InvalidBatch(f"second_segments has {second.size} values, and there are {counts.size} queries")
    if ((second < 0) | (second > counts)).any():
        raise InvalidBatch("a second segment begins outside its query")
    return second


def _spans(span_counts: bytes, spans: bytes, lengths: IdArray, facts: EngineFacts) -> Spans | None:
    if not span_counts:
        return None
    counts, bounds = _int32(span_counts, "span_counts"), _int32(spans, "spans")
    if not facts.pools_spans:
        raise InvalidBatch("spans are given, and the model served here does not pool them")
    if counts.size != lengths.size:
        raise InvalidBatch(f"span_counts has {counts.size} values, and there are {lengths.size} queries")
    if (counts < 0).any() or 2 * counts.sum(dtype=np.int64) != bounds.size:
        raise InvalidBatch(f"spans has {bounds.size} values: expected two for each of span_counts")
    pairs = bounds.reshape(-1, 2)
    queries, (starts, ends) = np.repeat(np.arange(counts.size), counts), pairs.T
    before = np.zeros_like(starts)
    before[1:] = np.where(queries[1:] == queries[:-1], ends[:-1], 0)
    if ((starts < before) | (starts >= ends) | (ends > lengths[queries])).any():
        raise InvalidBatch("a span is empty, lies outside its query, or begins before the one in front of it ends")
    return Spans(counts, pairs)


def _any_within(marks: npt.NDArray[np.bool_], counts: IdArray) -> npt.NDArray[np.bool_]:
    """Per query, whether any of its tokens is marked."""
    seen = np.concatenate(([0], np.cumsum(marks)))
    ends = np.cumsum(counts)
    return np.asarray(seen[ends] > seen[ends - counts], np.bool_)


def _fault(index: int, counts: IdArray, facts: EngineFacts, *, empty: bool) -> QueryFault:
    if empty:
        return QueryFault(index, grpc.StatusCode.INVALID_ARGUMENT, "the query is empty")
    if counts[index] > facts.max_input_tokens:
        text = f"{counts[index]} tokens are more than the {facts.max_input_tokens} that the model takes"
        return QueryFault(index, grpc.StatusCode.OUT_OF_RANGE, text)
    text = f"a token id lies outside the vocabulary of {facts.vocabulary_size}"
    return QueryFault(index, grpc.StatusCode.INVALID_ARGUMENT, text)
