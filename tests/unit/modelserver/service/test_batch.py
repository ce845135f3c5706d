"""What is refused before an engine sees it, and what of a batch survives its bad queries."""

from __future__ import annotations

from dataclasses import replace

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engines.engine import Activation, Scoring, Task
from modelserver.errors import InvalidBatch
from modelserver.service.batch import Batch, QueryFault, broken_rows, decode_batch, encode, known_priority
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_step_engine import facts_of
from tests.support.queries import packed

FACTS = facts_of(step_tokens=100, step_queries=8, max_input_tokens=20)


def decoded(*queries: list[int], isolated: bool = False, max_step_tokens: int = 0) -> Batch:
    ids = packed(*(token for query in queries for token in query))
    lengths = packed(*map(len, queries))
    return decode_batch(ids, lengths, isolated=isolated, max_step_tokens=max_step_tokens, facts=FACTS)


def test_a_sender_without_a_budget_gets_the_whole_step() -> None:
    assert decoded([1]).max_step_tokens == FACTS.step_token_capacity
    assert decoded([1], max_step_tokens=7).max_step_tokens == 7


def paired(second_segments: bytes) -> Batch:
    """Four queries to a model with token types: the second is empty, the third has a foreign id."""
    scoring = Scoring(("",), Activation.SIGMOID, token_types=True)
    facts = replace(FACTS, tasks=frozenset((Task.RANK,)), scoring=scoring)
    ids, lengths = packed(1, 2, 1, 2, 9999, 5, 6), packed(2, 0, 3, 2)
    return decode_batch(ids, lengths, second_segments, isolated=False, max_step_tokens=0, facts=facts)


@pytest.mark.parametrize(
    ("ids", "lengths", "words"),
    [
        (b"\0\0\0", packed(1), "token_ids has 3 bytes"),
        (packed(1), b"\0\0\0\0\0", "lengths has 5 bytes"),
        (packed(1, 2), packed(1), "sum to 1, but there are 2"),
        (packed(1), packed(1, 1), "sum to 2, but there are 1"),
        (packed(1), packed(2, -1), "negative"),
        (b"", b"", "no queries"),
        (packed(*[1] * 101), packed(*[20] * 5, 1), "101 tokens are more than the 100"),
        (packed(*[1] * 9), packed(*[1] * 9), "9 queries are more than the 8"),
        (packed(1), packed(2**31 - 1, 2**31 - 1, 3), "sum to 4294967297"),
    ],
)
def test_what_is_not_a_batch_is_refused_whole(ids: bytes, lengths: bytes, words: str) -> None:
    with pytest.raises(InvalidBatch, match=words):
        decode_batch(ids, lengths, isolated=False, max_step_tokens=0, facts=FACTS)


def test_a_vector_that_is_not_finite_is_a_fault_of_its_query_alone() -> None:
    batch = decoded([], [1], [2])
    data, faults = encode(batch, np.array([[np.nan, 2], [3, 4]], np.float32), np.array([True, False]))
    assert np.frombuffer(data, "<f4").reshape(3, 2).tolist() == [[0, 0], [0, 0], [3, 4]]
    assert faults[1] == QueryFault(1, grpc.StatusCode.INTERNAL, "the engine's result is not finite, or all zero")


def test_second_segments_stay_with_the_queries_that_are_good() -> None:
    batch = paired(packed(1, 0, 3, 2))
    assert batch.second_segments is not None
    assert batch.second_segments.tolist() == [1, 2]
    assert [fault.index for fault in batch.faults] == [1, 2]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (packed(1, 0, 3), "second_segments has 3 values, and there are 4 queries"),
        (packed(1, 0, 3, 3), "begins outside its query"),
        (packed(-1, 0, 3, 2), "begins outside its query"),
        (b"\0", "second_segments has 1 bytes"),
    ],
)
def test_second_segments_that_fit_no_batch_are_refused(second: bytes, words: str) -> None:
    with pytest.raises(InvalidBatch, match=words):
        paired(second)


def test_a_model_without_token_types_takes_no_second_segments() -> None:
    with pytest.raises(InvalidBatch, match="no token types"):
        decode_batch(packed(1), packed(1), packed(0), isolated=False, max_step_tokens=0, facts=FACTS)


def test_vectors_of_a_good_batch_go_out_as_they_are() -> None:
    matrix = np.array([[1, np.inf], [3, 4]], np.float32)
    data, faults = encode(decoded([1], [2]), matrix, broken_rows(matrix, zeros=False))
    assert np.frombuffer(data, "<f4").tolist() == [0, 0, 3, 4]
    assert [fault.index for fault in faults] == [0]
    assert np.isinf(matrix).any(), "the engine's own array is left alone"


tokens = st.one_of(st.integers(0, 999), st.sampled_from([-1, 1000, -(2**31), 2**31 - 1]))


@given(
    st.lists(
        st.one_of(st.lists(st.integers(0, 999), max_size=12), st.lists(tokens, max_size=12)), min_size=1, max_size=8
    )
)
def test_good_queries_are_unharmed_and_bad_ones_named_whatever_is_beside(queries: list[list[int]]) -> None:
    batch = decoded(*queries)
    good = [place for place, query in enumerate(queries) if query and all(0 <= token < 1000 for token in query)]
    assert [fault.index for fault in batch.faults] == [place for place in range(len(queries)) if place not in good]
    assert (list(range(len(queries))) if batch.positions is None else batch.positions.tolist()) == good
    assert batch.token_ids.tolist() == [token for place in good for token in queries[place]]
    assert batch.lengths.tolist() == [len(queries[place]) for place in good]
    matrix = np.arange(1, 2 * len(good) + 1, dtype=np.float32).reshape(-1, 2)
    data, _ = encode(batch, matrix)
    whole = np.frombuffer(data, "<f4").reshape(len(queries), 2)
    assert whole[good].tolist() == matrix.tolist()
    assert not whole[[fault.index for fault in batch.faults]].any()


def test_a_batch_may_fill_the_step_in_tokens_and_in_queries() -> None:
    assert decoded(*[[1] * 20] * 5).token_count == 100
    assert decoded(*[[1]] * 8).query_count == 8


def test_a_batch_says_whether_it_goes_alone_whatever_is_wrong_with_it() -> None:
    assert [decoded([1], isolated=isolated).isolated for isolated in (True, False)] == [True, False]
    assert [decoded([1], [], isolated=isolated).isolated for isolated in (True, False)] == [True, False]
    assert decoded([1], [], max_step_tokens=7).max_step_tokens == 7
    assert decoded([1], [], [2]).query_count == 3


def test_each_fault_says_what_is_wrong_with_its_own_query() -> None:
    batch = decoded([], [5] * 21, [1000], [1], [-5, 3])
    assert batch.faults == (
        QueryFault(0, grpc.StatusCode.INVALID_ARGUMENT, "the query is empty"),
        QueryFault(1, grpc.StatusCode.OUT_OF_RANGE, "21 tokens are more than the 20 that the model takes"),
        QueryFault(2, grpc.StatusCode.INVALID_ARGUMENT, "a token id lies outside the vocabulary of 1000"),
        QueryFault(4, grpc.StatusCode.INVALID_ARGUMENT, "a token id lies outside the vocabulary of 1000"),
    )
    assert batch.token_ids.tolist() == [1]


def test_a_query_of_the_greatest_length_with_a_foreign_id_is_not_too_long() -> None:
    (fault,) = decoded([5] * 19 + [1000], [1]).faults
    assert fault.code is grpc.StatusCode.INVALID_ARGUMENT


def spanned(counts: bytes, spans: bytes) -> Batch:
    """Three queries to a model that pools spans: the second has a foreign id."""
    facts = replace(FACTS, pools_spans=True)
    ids, lengths = packed(1, 2, 3, 9999, 5, 6, 7, 8), packed(3, 1, 4)
    return decode_batch(ids, lengths, b"", counts, spans, isolated=False, max_step_tokens=0, facts=facts)


def test_each_span_of_a_good_query_has_its_row() -> None:
    batch = spanned(packed(2, 1, 0), packed(0, 1, 1, 3, 0, 1))
    assert batch.spans is not None
    assert (batch.row_count, batch.sent_row_count) == (3, 4)
    places, sizes = batch.spans.tokens(batch.lengths)
    assert (places.tolist(), sizes.tolist()) == ([0, 1, 2, 3, 4, 5, 6], [1, 2, 4])
    data, faults = encode(batch, np.array([[1], [2], [3]], np.float32))
    assert np.frombuffer(data, "<f4").tolist() == [1, 2, 0, 3]
    assert [fault.index for fault in faults] == [1]


def test_a_span_without_a_finite_vector_fails_its_query() -> None:
    batch = spanned(packed(2, 1, 0), packed(0, 1, 1, 3, 0, 1))
    data, faults = encode(batch, np.array([[1], [np.nan], [3]], np.float32), np.array([False, True, False]))
    assert np.frombuffer(data, "<f4").tolist() == [0, 0, 0, 3]
    assert [fault.index for fault in faults] == [1, 0]


@pytest.mark.parametrize(
    ("counts", "spans", "words"),
    [
        (packed(1, 0), packed(0, 1), "span_counts has 2 values, and there are 3 queries"),
        (packed(1, 0, 0), packed(0), "spans has 1 values"),
        (packed(-1, 1, 0), b"", "spans has 0 values"),
        (packed(1, 0, 0), packed(1, 1), "is empty"),
        (packed(1, 0, 0), packed(0, 4), "lies outside its query"),
        (packed(2, 0, 0), packed(0, 2, 1, 3), "begins before the one in front of it ends"),
    ],
)
def test_spans_that_do_not_fit_their_queries_are_refused(counts: bytes, spans: bytes, words: str) -> None:
    with pytest.raises(InvalidBatch, match=words):
        spanned(counts, spans)


def test_spans_are_refused_where_none_are_pooled() -> None:
    facts = replace(FACTS, pools_spans=False)
    with pytest.raises(InvalidBatch, match="does not pool them"):
        decode_batch(packed(1), packed(1), b"", packed(1), packed(0, 1), isolated=False, max_step_tokens=0, facts=facts)


@pytest.mark.parametrize(("named", "counts_as"), [(0, 2), (1, 1), (2, 2), (3, 3), (99, 2), (-1, 2)])
def test_a_class_that_is_not_known_counts_as_the_default_one(named: pb.Priority, counts_as: int) -> None:
    assert known_priority(named) == counts_as
