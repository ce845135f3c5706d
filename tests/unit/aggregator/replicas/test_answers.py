"""What a model server says is believed only where it can be true."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggregator.errors import Code, ModelServerLost
from aggregator.model_server import ServerDescription, differences
from aggregator.registry import KINDS
from aggregator.replicas.answers import BadDescription, checked_description, checked_result
from aggregator.scheduler.curve import Curve, Rule
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_engine import batch, description
from tests.support.fake_model_server import describe_response

BATCH = batch([1, 10, 2], [1, 11, 12, 2])
TWO = description(dimensions=2)


def answer(**changes: Any) -> pb.EmbedBatchResponse:
    """A right answer to the batch, with changes."""
    said = pb.EmbedBatchResponse(
        embeddings=np.arange(4, dtype="<f4").tobytes(),
        dimensions=2,
        step_tokens=70,
        step_duration_s=0.01,
        queued_tokens=3,
        idle_before_s=0.002,
        staged_s=0.001,
    )
    for name, value in changes.items():
        setattr(said, name, value)
    return said


def checked(said: pb.DescribeResponse) -> ServerDescription:
    return checked_description("a:1", said, KINDS)


def test_a_description_is_taken_over_as_it_is() -> None:
    said = describe_response(matryoshka_dimensions=[8, 1, 4], query_prompt="q: ", document_prompt="d: ")
    found = checked(said)
    assert found == description(
        address="a:1",
        matryoshka_dimensions=frozenset({1, 4, 8}),
        tokenizer_fingerprint=said.tokenizer_fingerprint,
        vocabulary_size=1000,
        query_prompt="q: ",
        document_prompt="d: ",
        curve=Curve(0.01, 0.004, 0.00001, 600, Rule.HINGE, 8192),
    )


def test_no_input_is_longer_than_a_step() -> None:
    assert checked(describe_response(step_token_capacity=100)).max_input_tokens == 100
    assert checked(describe_response(step_token_capacity=1, vocabulary_size=1)).max_input_tokens == 1


@pytest.mark.parametrize(
    "field", ["dimensions", "max_input_tokens", "step_token_capacity", "step_query_capacity", "vocabulary_size"]
)
def test_one_of_anything_is_little_but_possible_and_nothing_is_not(field: str) -> None:
    said = describe_response()
    setattr(said, field, 1)
    assert getattr(checked(said), field) == 1
    setattr(said, field, 0)
    with pytest.raises(BadDescription, match=field):
        checked(said)


@pytest.mark.parametrize("dimensions", [[0], [9], [4, 9]])
def test_dimensions_that_the_model_has_not_are_refused(dimensions: list[int]) -> None:
    with pytest.raises(BadDescription, match="matryoshka_dimensions"):
        checked(describe_response(matryoshka_dimensions=dimensions))


@pytest.mark.parametrize("dimensions", [1, 384, 1000, 4096])
def test_a_step_holds_as_many_queries_as_one_message_can_answer(dimensions: int) -> None:
    found = checked(describe_response(dimensions=dimensions, step_query_capacity=2**30))
    assert isinstance(found.step_query_capacity, int)
    room = 64 * 2**20 - found.step_query_capacity * dimensions * 4
    assert 64 * 2**10 <= room < 64 * 2**10 + dimensions * 4
    assert checked(describe_response(step_query_capacity=7)).step_query_capacity == 7


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"floor_s": 0.0}, True),
        ({"fixed_s": 0.0}, True),
        ({"per_token_s": 0.0}, True),
        ({"floor_s": 0.0, "fixed_s": 0.0}, True),
        ({"saturation_point": 1, "rule": "throughput", "max_tokens": 77}, True),
        ({"floor_s": 0.0, "fixed_s": 0.0, "per_token_s": 0.0}, False),
        ({"floor_s": math.inf}, False),
        ({"per_token_s": -1e-9}, False),
        ({"saturation_point": 0}, False),
        ({"rule": ""}, False),
    ],
)
def test_a_curve_may_lack_all_but_one_time_and_is_none_if_no_step_follows(
    changes: dict[str, Any], *, known: bool
) -> None:
    said = describe_response()
    for name, value in changes.items():
        setattr(said.profile, name, value)
    profile = said.profile
    times = (profile.floor_s, profile.fixed_s, profile.per_token_s)
    curve = Curve(*times, profile.saturation_point, Rule(profile.rule), profile.max_tokens) if known else None
    assert checked(said).curve == curve


def test_the_sizes_that_a_server_has_graphs_for_are_part_of_its_curve() -> None:
    curve = checked(describe_response(capture_sizes=[64, 8, 16])).curve
    assert curve is not None
    assert curve.capture_sizes == (8, 16, 64)
    assert curve.time_s(17) == curve.time_s(64)


def test_vectors_come_in_the_order_of_their_queries_with_the_step_told() -> None:
    result = checked_result(BATCH, TWO, answer())
    assert result.matrix.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert result.errors == ()
    report = result.report
    assert (report.step_tokens, report.step_duration_s, report.queued_tokens) == (70, 0.01, 3)
    assert (report.idle_before_s, report.staged_s) == (0.002, 0.001)


def test_a_step_may_take_no_time_that_a_clock_can_tell() -> None:
    told = checked_result(BATCH, TWO, answer(step_duration_s=0.0, idle_before_s=0.0, staged_s=0.0)).report
    assert (told.step_duration_s, told.idle_before_s, told.staged_s) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dimensions": 4}, "4 dimensions, not 2"),
        ({"embeddings": bytes(12)}, "12 bytes of vectors, not 16"),
        ({"step_duration_s": math.inf}, "a time of inf s"),
        ({"idle_before_s": -0.001}, "a time of -0.001 s"),
        ({"staged_s": math.nan}, "a time of nan s"),
        ({"unclaimed_s": -1.0}, "a time of -1.0 s"),
    ],
)
def test_an_answer_that_cannot_be_right_loses_its_server(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelServerLost, match=words):
        checked_result(BATCH, TWO, answer(**changes))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_an_error_of_its_query_alone(value: float) -> None:
    said = answer(embeddings=np.array([0, 1, 2, value], "<f4").tobytes())
    assert checked_result(BATCH, TWO, said).errors == ((1, Code.INTERNAL, "the answer is not finite, or all zero"),)


def test_a_row_of_zeros_is_an_error_where_the_server_gives_none() -> None:
    said = answer(embeddings=np.array([0, 0, 2, 3], "<f4").tobytes())
    assert checked_result(BATCH, TWO, said).errors == ()
    never = checked(describe_response(dimensions=2, never_zero=True))
    assert [place for place, _, _ in checked_result(BATCH, never, said).errors] == [0]
    said.errors.add(index=0, code=Code.OUT_OF_RANGE, message="long")
    assert checked_result(BATCH, never, said).errors == ((0, Code.OUT_OF_RANGE, "long"),)


def test_a_broken_chunk_is_an_error_of_its_document() -> None:
    batch = replace(BATCH, span_counts=np.array([2, 1], "<i4").tobytes())
    said = answer(embeddings=np.array([1, 1, math.nan, 1, 2, 2], "<f4").tobytes())
    assert [place for place, _, _ in checked_result(batch, TWO, said).errors] == [0]


def test_values_whose_sum_overflows_are_finite_all_the_same() -> None:
    largest = np.full(4, 3e38, "<f4")
    assert checked_result(BATCH, TWO, answer(embeddings=largest.tobytes())).matrix.max() == np.float32(3e38)


def test_failed_queries_are_told_by_place_code_and_words() -> None:
    said = answer()
    said.errors.add(index=1, code=Code.INVALID_ARGUMENT, message="empty")
    said.errors.add(index=0, code=Code.OUT_OF_RANGE, message="long")
    assert checked_result(BATCH, TWO, said).errors == ((1, 3, "empty"), (0, 11, "long"))


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        ([(2, 3)], "positions outside the batch"),
        ([(1, 3), (1, 3)], "positions outside the batch"),
        ([(0, 0)], "an unknown code"),
        ([(0, 999)], "an unknown code"),
    ],
)
def test_failures_that_cannot_be_lose_their_server(failed: list[tuple[int, int]], words: str) -> None:
    said = answer()
    for index, code in failed:
        said.errors.add(index=index, code=code, message="why")
    with pytest.raises(ModelServerLost, match=words):
        checked_result(BATCH, TWO, said)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer_fingerprint": "f2"}, "tokenizer_fingerprint 'f1', not 'f2'"),
        ({"dimensions": 16}, "dimensions 8, not 16"),
        ({"matryoshka_dimensions": frozenset({4})}, "matryoshka_dimensions frozenset(), not frozenset({4})"),
        ({"vocabulary_size": 5}, "vocabulary_size 40000, not 5"),
        ({"normalizes": False}, "normalizes True, not False"),
        ({"query_prompt": "q"}, "query_prompt '', not 'q'"),
        ({"document_prompt": "d"}, "document_prompt '', not 'd'"),
    ],
)
def test_whatever_would_make_answers_differ_between_two_servers_is_named(changes: dict[str, Any], named: str) -> None:
    assert differences(description(), replace(description(), **changes)) == [named]


def test_servers_of_a_revision_may_differ_in_sizes() -> None:
    sizes = {"step_token_capacity": 9, "step_query_capacity": 9, "max_input_tokens": 512, "curve": None}
    assert differences(description(), description(address="b:1", instance_id="2", **sizes)) == []


def test_a_server_that_does_nothing_known_is_refused() -> None:
    with pytest.raises(BadDescription, match="it does none of the tasks embed, "):
        checked(describe_response(tasks=["translate"]))


def test_a_generating_servers_answer_reports_the_room_beside_decoding() -> None:
    report = checked_result(BATCH, TWO, answer(decoding_sequences=7, embed_room_tokens=0)).report
    assert (report.decoding_sequences, report.embed_room_tokens) == (7, 0)
    report = checked_result(BATCH, TWO, answer()).report
    assert (report.decoding_sequences, report.embed_room_tokens) == (0, None)
