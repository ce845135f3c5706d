"""Answers as bytes say in every field what the answer as a message says, and large ones hold nothing up."""

from __future__ import annotations

import json

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

from aggregator.errors import Code
from aggregator.request.request import Failure, Options, Outcome, Request
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.sources.wire.encode import json_of, response, to_protobuf
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import any_request

DIMENSIONS = 64
FAILED = Failure(Code.RESOURCE_EXHAUSTED, "full", retryable=True, retry_after_s=0.25)


def batch(batch_id: str, rows: int) -> CompletedBatch:
    matrix = np.random.default_rng(rows).standard_normal((rows, DIMENSIONS), dtype=np.float32)
    return CompletedBatch(batch_id, "m", "r1", 2, matrix, 0.01, 0.02)


def request_of(outcomes: list[Outcome | None], encoding: int = pb.ENCODING_FLOAT32, dimensions: int = 32) -> Request:
    options = Options(dimensions=dimensions, encoding=encoding, normalize=True)
    return any_request(*["x"] * len(outcomes), outcomes=outcomes, model="alias", options=options)


@pytest.mark.parametrize("encoding", pb.Encoding.values()[1:])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_bytes_and_message_are_equal(encoding: int, count: int) -> None:
    first, second = batch("b-1", 8), batch("b-2", 3)
    outcomes: list[Outcome | None] = [
        Vector(first, 3, 5, 0.5),
        FAILED,
        Vector(second, 0, 1, 0.75),
        Vector(first, 1, 5, 0.5),
        Failure(Code.OUT_OF_RANGE, "too long"),
        Vector(second, 2, 300, 0.1),
        Vector(first, 7, 0, 0.0),
    ]
    request = request_of(outcomes[:count], encoding)
    assert pb.EmbedResponse.FromString(to_protobuf(request, "reply")) == response(request, "reply")
    assert b'"requestId"' in json_of(response(request, "reply"))


def test_an_answer_without_any_vector_says_why() -> None:
    request = request_of([FAILED, FAILED])
    answer = pb.EmbedResponse.FromString(to_protobuf(request, "reply"))
    assert answer == response(request, "reply")
    assert (answer.status.code, answer.status.message) == (Code.RESOURCE_EXHAUSTED, "full")


@pytest.mark.parametrize(
    ("count", "encoding", "dimensions", "large"),
    [
        (1, pb.ENCODING_FLOAT32, 2**20, False),
        (255, pb.ENCODING_FLOAT32, 1024, False),
        (256, pb.ENCODING_FLOAT32, 1024, True),
        (1024, pb.ENCODING_INT8, 1024, True),
        (1024, pb.ENCODING_BINARY, 1024, False),
        (1024, pb.ENCODING_FLOAT32, 0, False),  # refused before a model made it definite
    ],
)
def test_what_takes_milliseconds_is_large(count: int, encoding: int, dimensions: int, *, large: bool) -> None:
    request = request_of([FAILED] * count, encoding, dimensions)
    assert request.kind.is_large(request) is large


@pytest.mark.parametrize("encoding", pb.Encoding.values()[1:])
@pytest.mark.parametrize("count", [1, 3])
def test_json_says_what_the_message_says(encoding: int, count: int) -> None:
    of_batch = batch("b-1", 4)
    request = request_of([Vector(of_batch, row, 5, 0.25 * row) for row in range(count)], encoding)
    written = json_of(response(request, "reply"))
    assert b"\n" not in written
    assert json.loads(written) == MessageToDict(response(request, "reply"))


@pytest.mark.parametrize("request_id", ["", "x", "ÿ", "🙂" * 100, "x" * 300])
def test_ids_of_any_length_and_script_stand_in_the_answer(request_id: str) -> None:
    request = request_of([Vector(batch("b", 2), 1, 3, 0.5)])
    request.request_id = request_id
    answer = pb.EmbedResponse.FromString(to_protobuf(request, request_id[::-1]))
    assert (answer.request_id, answer.reply_id) == (request_id, request_id[::-1])
    told = json.loads(json_of(response(request, request_id[::-1])))
    assert (told.get("requestId", ""), told.get("replyId", "")) == (request_id, request_id[::-1])


def test_requests_of_one_batch_with_other_options_do_not_share_answers() -> None:
    of_batch = batch("b", 3)
    sizes = [
        len(pb.EmbedResponse.FromString(to_protobuf(request, "r")).embeddings[0].embedding)
        for request in (
            request_of([Vector(of_batch, 0, 3, 0.5)], pb.ENCODING_FLOAT32, 32),
            request_of([Vector(of_batch, 0, 3, 0.5)], pb.ENCODING_FLOAT32, 16),
            request_of([Vector(of_batch, 0, 3, 0.5)], pb.ENCODING_FLOAT16, 16),
        )
    ]
    assert sizes == [128, 64, 32]


def test_two_inputs_whose_vectors_are_long_are_large() -> None:
    request = request_of([FAILED] * 2, pb.ENCODING_FLOAT32, 2**17)
    assert request.kind.is_large(request)
    request = request_of([FAILED] * 2, pb.ENCODING_FLOAT32, 2**17 - 1)
    assert not request.kind.is_large(request)


def test_times_of_many_seconds_are_told_to_the_nanosecond() -> None:
    matrix = np.ones((1, DIMENSIONS), np.float32)
    slow = CompletedBatch("b", "m", "r1", 2, matrix, 7.25, 9.5)
    request = request_of([Vector(slow, 0, 3, 5.125)])
    answer = pb.EmbedResponse.FromString(to_protobuf(request, "reply"))
    assert answer == response(request, "reply")
    told = answer.timings
    assert [part.ToNanoseconds() for part in (told.batched, told.inference, told.queued)] == [
        7_250_000_000,
        9_500_000_000,
        5_125_000_000,
    ]
    assert json.loads(json_of(response(request, "reply")))["timings"]["batched"] == "7.250s"


def test_any_failure_is_told_of_the_whole_with_when_to_come_again() -> None:
    vector = Vector(batch("b", 2), 0, 1, 0.0)
    orders: tuple[list[Outcome | None], ...] = [vector, FAILED], [FAILED, vector]
    for outcomes in orders:
        answer = pb.EmbedResponse.FromString(to_protobuf(request_of(outcomes), "reply"))
        assert (answer.status.code, answer.status.message) == (Code.RESOURCE_EXHAUSTED, "full")
        assert answer.status.retry_delay.ToNanoseconds() == 250_000_000
    late = Failure(Code.RESOURCE_EXHAUSTED, "full", retryable=True, retry_after_s=2.5)
    assert response(request_of([late]), "reply").status.retry_delay.ToNanoseconds() == 2_500_000_000


def test_who_got_no_vector_reads_the_name_that_it_asked_for() -> None:
    assert pb.EmbedResponse.FromString(to_protobuf(request_of([FAILED]), "reply")).model == "alias"


@pytest.mark.parametrize("token_count", [255, 32767])
def test_a_vector_of_one_byte_is_told_from_what_looks_like_it(token_count: int) -> None:
    request = request_of([Vector(batch("b", 1), 0, token_count, 0.5)], pb.ENCODING_BINARY, 8)
    assert pb.EmbedResponse.FromString(to_protobuf(request, "reply")) == response(request, "reply")


def test_an_answer_tells_of_the_first_batch_that_was_waited_for_longest() -> None:
    waits = (0.25, 0.5, 0.5)
    outcomes: list[Outcome | None] = [Vector(batch(str(row), 1), 0, 3, wait_s) for row, wait_s in enumerate(waits)]
    assert response(request_of(outcomes), "reply").batch_id == "1"
