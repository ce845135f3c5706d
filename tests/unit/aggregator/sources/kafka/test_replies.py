"""Replies say what the public message says, whatever their format; dead letters keep the record."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from aggregator.errors import Code, InvalidRequest, Undecodable
from aggregator.request.request import Failure, Options, Outcome, Request
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.sources.kafka.answered import Answered
from aggregator.sources.kafka.decode import RecordOrigin, Refused, ReplyRoute, origin_of, record_of, reply_id
from aggregator.sources.kafka.offsets import Header
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.replies import DeadLetter, encode_refusal, encode_reply
from aggregator.sources.wire.encode import response
from aggregator.sources.wire.values import JSON, PROTOBUF
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import KAFKA, any_request
from tests.support.records import in_flight_of

GROUP = "group"
DIMENSIONS = 4
ROWS = 2


def batch_of(attempt: int = 0, batched_s: float = 0.001) -> CompletedBatch:
    matrix = np.random.default_rng(attempt).standard_normal((ROWS, DIMENSIONS), dtype=np.float32)
    return CompletedBatch(f"batch-{attempt}", "small", "r1", attempt, matrix, batched_s, 0.02)


def request_of(
    outcomes: list[Outcome | None],
    options: Options | None = None,
    *,
    json: bool = False,
    request_id: str = "q",
    offset: int = 42,
    headers: tuple[Header, ...] = (),
) -> Request:
    content_type: list[Header] = [("content-type", JSON if json else PROTOBUF), *headers]
    record = in_flight_of(b"", offset=offset)
    route = ReplyRoute("replies", None, json, content_type)
    inputs = ["a"] * len(outcomes)
    named = {"request_id": request_id, "model": "small", "options": options or Options()}
    return any_request(*inputs, outcomes=outcomes, source=KAFKA, origin=RecordOrigin(record, route), **named)


def expected(request: Request) -> pb.EmbedResponse:
    return response(request, reply_id(record_of(request), request.request_id, GROUP))


BATCHES = (batch_of(), batch_of(2, batched_s=0.0))
VECTORS = st.builds(
    Vector,
    batch=st.sampled_from(BATCHES),
    row=st.integers(0, ROWS - 1),
    token_count=st.integers(0, 10_000),
    queued_s=st.floats(0, 5000),
)
FAILURES = st.builds(
    Failure, code=st.sampled_from(list(Code)[1:]), message=st.text(max_size=20), retryable=st.booleans()
)
OPTIONS = st.builds(
    Options,
    dimensions=st.sampled_from([0, 1, 3, DIMENSIONS]),
    encoding=st.sampled_from([pb.ENCODING_FLOAT32, pb.ENCODING_FLOAT16, pb.ENCODING_INT8, pb.ENCODING_BINARY]),
    normalize=st.sampled_from([None, True, False]),
)
REQUESTS = st.builds(
    request_of,
    st.lists(VECTORS | FAILURES, min_size=1, max_size=3),
    OPTIONS,
    json=st.booleans(),
    request_id=st.text(min_size=1, max_size=12),
    offset=st.integers(0, 2**40),
)


@given(st.lists(REQUESTS, max_size=4))
def test_every_reply_equals_the_public_message(requests: list[Request]) -> None:
    replies = [encode_reply(each, GROUP) for each in requests]
    assert len(replies) == len(requests)
    for request, reply in zip(requests, replies, strict=True):
        route = origin_of(request).route
        if route.json:
            assert json.loads(reply.value or b"") == MessageToDict(expected(request))
        else:
            assert pb.EmbedResponse.FromString(reply.value or b"") == expected(request)
        assert (reply.topic, reply.partition, reply.key) == (route.topic, route.partition, b"key")
        assert reply.headers is route.headers


def test_an_unencodable_reply_is_an_error_to_its_sender_and_harms_nobody() -> None:
    broken = CompletedBatch("b", "small", "r1", 0, np.zeros(3, np.float32), 0.0, 0.0)
    requests = [request_of([Vector(batch, 0, 3, 0.0)], Options(dimensions=1)) for batch in (broken, batch_of())]
    first, second = (
        pb.EmbedResponse.FromString(reply.value or b"") for reply in (encode_reply(each, GROUP) for each in requests)
    )
    assert (first.request_id, first.status.code, len(first.embeddings)) == ("q", Code.INTERNAL, 0)
    assert second == expected(requests[1])


def test_a_reply_id_is_the_record_s_the_request_s_and_the_group_s_own() -> None:
    def identity(*place: Any) -> str:
        topic, written, partition, offset, request_id, group_id = place
        in_flight = in_flight_of(b"", topic=topic, partition=partition, offset=offset)
        in_flight.timestamp += len(written)
        return reply_id(in_flight, request_id, group_id)

    mine = ("t", "first", 1, 23, "q", "g")
    assert len(identity(*mine)) == 32
    others = [
        ("u", "first", 1, 23, "q", "g"),
        ("t", "second", 1, 23, "q", "g"),  # deleted and made again
        ("t", "first", 2, 23, "q", "g"),
        ("t", "first", 1, 24, "q", "g"),
        ("t", "first", 1, 23, "r", "g"),
        ("t", "first", 12, 3, "q", "g"),
        ("t", "first", 1, 23, "q", "h"),
    ]
    assert len({identity(*each) for each in [mine, mine, *others]}) == 8


@pytest.mark.parametrize("as_json", [False, True])
def test_a_refused_record_is_answered_with_its_code(*, as_json: bool) -> None:
    in_flight = in_flight_of(b"\xff")
    route = ReplyRoute("replies", 5, as_json, [("content-type", JSON if as_json else PROTOBUF)])
    reply = encode_refusal(Refused(in_flight, Undecodable("no request"), "event-7", route, dead_letter=True), GROUP)
    if as_json:
        answer = json.loads(reply.value or b"")
        assert (answer["requestId"], answer["status"]["code"]) == ("event-7", Code.DATA_LOSS)
    else:
        message = pb.EmbedResponse.FromString(reply.value or b"")
        assert (message.request_id, message.status.code) == ("event-7", Code.DATA_LOSS)
        assert message.reply_id == reply_id(in_flight, "event-7", GROUP)
        assert (message.status.message, message.status.retryable) == ("no request", False)
    assert (reply.topic, reply.partition, reply.key, reply.headers) == ("replies", 5, b"key", route.headers)


def buried(
    value: bytes | None, headers: list[Header], key: bytes | None = b"key", *, omit: bool = False
) -> OutgoingRecord:
    in_flight = in_flight_of(value, headers, key=key)
    letter = DeadLetter(in_flight, Code.INTERNAL, "broke the engine", 3, 1_767_225_600.5, omits_value=omit)
    return letter.record("tokenbatch")


def test_a_dead_letter_keeps_the_record_and_says_why() -> None:
    letter = buried(b"\xff\x00", [("x", b"1"), ("x", b"2"), ("dlt-attempts", b"1")])
    assert (letter.topic, letter.partition, letter.key, letter.value) == (
        "embed.requests.v1-dlt",
        None,
        b"key",
        b"\xff\x00",
    )
    assert letter.headers == [
        ("x", b"1"),
        ("x", b"2"),
        ("dlt-original-topic", b"embed.requests.v1"),
        ("dlt-original-partition", b"3"),
        ("dlt-original-offset", b"42"),
        ("dlt-original-timestamp", b"1700000000000"),
        ("dlt-original-consumer-group", b"tokenbatch"),
        ("dlt-error-code", b"INTERNAL"),
        ("dlt-error-message", b"broke the engine"),
        ("dlt-attempts", b"3"),
        ("dlt-first-failure-time", b"2026-01-01T00:00:00.500+00:00"),
    ]


@pytest.mark.parametrize("value", [None, b""])
def test_a_tombstone_s_dead_letter_is_a_tombstone(value: bytes | None) -> None:
    assert buried(value, []).value == value


def test_a_value_too_large_for_the_dead_letter_topic_leaves_its_digest() -> None:
    value = b"long" * 1000
    letter = buried(value, [("x", b"1")], omit=True)
    headers = dict(letter.headers)
    assert (letter.value, letter.key, headers["x"]) == (b"", b"key", b"1")
    assert headers["dlt-value-omitted"] == b"true"
    assert headers["dlt-value-size"] == b"4000"
    assert headers["dlt-value-sha256"] == hashlib.sha256(value).hexdigest().encode()


def test_a_dead_letter_lacks_key_and_headers_only_if_too_large_together() -> None:
    for size, kept in ((32 * 1024 - 2, True), (32 * 1024 - 1, False)):
        letter = buried(b"v", [("x", b"h" * (size - 1000))], b"k" * 1001, omit=True)
        assert ("x" in dict(letter.headers)) == (letter.key is not None) == kept
        assert ("dlt-headers-omitted" in dict(letter.headers)) != kept


def test_a_small_record_is_kept_whole_however_large_its_headers() -> None:
    letter = buried(b"v", [("x", b"h" * 40_000)])
    assert (letter.value, dict(letter.headers)["x"]) == (b"v", b"h" * 40_000)
    assert "dlt-value-omitted" not in dict(letter.headers)


def test_the_size_that_is_told_of_no_value_is_none() -> None:
    headers = dict(buried(None, [], None, omit=True).headers)
    assert headers["dlt-value-size"] == b"0"
    assert headers["dlt-value-sha256"] == hashlib.sha256(b"").hexdigest().encode()


def test_a_refused_record_s_id_is_cut_to_1024_characters_and_no_sooner() -> None:
    in_flight = in_flight_of(b"")
    route = ReplyRoute("replies", None, json=False, headers=[])
    for length, told in ((1024, 1024), (1025, 1024)):
        refused = Refused(in_flight, InvalidRequest("no"), "i" * length, route, dead_letter=False)
        answer = pb.EmbedResponse.FromString(encode_refusal(refused, GROUP).value or b"")
        assert len(answer.request_id) == told
        assert answer.reply_id == reply_id(in_flight, "i" * length, GROUP)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("encoding", [pb.ENCODING_FLOAT32, pb.ENCODING_INT8])
@pytest.mark.parametrize("count", [1, 2])
def test_a_reply_that_may_have_come_before_says_so_in_header_and_message(
    count: int, encoding: int, as_json: bool
) -> None:
    options = Options(encoding=encoding, normalize=False)
    vectors: list[Outcome | None] = [Vector(BATCHES[0], row, 3, 0.0) for row in range(count)]
    for replay in (False, True):
        request = request_of(list(vectors), options, json=as_json)
        request.replay = replay
        reply = encode_reply(request, GROUP)
        said = pb.EmbedResponse.FromString(reply.value or b"") if not as_json else None
        assert (json.loads(reply.value or b"").get("replay", False) if said is None else said.replay) is replay
        assert (("replay", b"true") in reply.headers) is replay


def test_a_refusal_that_may_have_come_before_says_so() -> None:
    in_flight = in_flight_of(b"")
    in_flight.committed_offset.answered_before = Answered(42)
    refused = Refused(in_flight, InvalidRequest("no"), "q", ReplyRoute("replies", None, False, []), dead_letter=False)
    reply = encode_refusal(refused, GROUP)
    assert pb.EmbedResponse.FromString(reply.value or b"").replay
    assert ("replay", b"true") in reply.headers


def test_a_topic_made_again_gives_other_reply_ids() -> None:
    in_flight, made_again = in_flight_of(b""), in_flight_of(b"")
    in_flight.committed_offset.topic_id, made_again.committed_offset.topic_id = "a" * 32, "b" * 32
    assert reply_id(in_flight, "q", GROUP) != reply_id(made_again, "q", GROUP)
