"""Records become requests by one set of rules, or are refused with a named error; never anything else."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import pytest

from aggregator.errors import InvalidRequest, Undecodable
from aggregator.request.request import Failure, Request
from aggregator.scheduler.work_item import Priority
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka import decode as kafka_decode
from aggregator.sources.kafka.answered import EXPIRED, Answer, Answered, Span
from aggregator.sources.kafka.decode import (
    Refused,
    TopicIntake,
    decode_all,
    decode_large,
    decode_record,
    intakes,
    origin_of,
    record_of,
)
from aggregator.sources.kafka.offsets import Fetched, Header, InFlightRecord
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of

SETTINGS = KafkaSettings(
    topics=(
        TopicSettings(name="embed.requests.v1"),
        TopicSettings(name="team-b.in", model="large", priority="background", tenant="team-b"),
    ),
    allowed_reply_topics=("team-a.*", "exact", "embed.*"),
)
WALL_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z
RECEIVED_S = 5000.0
QUESTION = pb.EmbedRequest(request_id="q-1", inputs=[pb.Input(text="why is the sky blue")])


@cache
def topics(*, trusts_tenant: bool = True) -> Mapping[str, TopicIntake]:
    known = intakes(SETTINGS, KAFKA, "small", trusts_tenant=trusts_tenant)
    return {topic: replace(intake, max_record_bytes=1000) for topic, intake in known.items()}


def read(in_flight: InFlightRecord) -> Request | Refused:
    return decode_record(in_flight, topics()[in_flight.topic], received_s=RECEIVED_S, wall_s=WALL_S)


def request_of(value: bytes | None, *headers: Header, topic: str = "embed.requests.v1") -> Request:
    result = read(in_flight_of(value, headers, topic=topic))
    assert isinstance(result, Request), result
    return result


def refused(value: bytes | None, *headers: Header) -> Refused:
    result = read(in_flight_of(value, headers))
    assert isinstance(result, Refused), result
    return result


def test_a_bare_protobuf_record_takes_everything_else_from_its_topic() -> None:
    in_flight = in_flight_of(QUESTION.SerializeToString())
    request = read(in_flight)
    assert isinstance(request, Request)
    assert (request.request_id, request.model, list(request.inputs)) == ("q-1", "small", ["why is the sky blue"])
    assert (request.priority, request.source, request.tenant) == (Priority.DEFAULT, KAFKA, "")
    assert (request.received_s, request.deadline_s) == (RECEIVED_S, inf)
    route = origin_of(request).route
    assert record_of(request) is in_flight
    assert (route.topic, route.partition, route.json) == ("embed.replies.v1", None, False)
    assert route.headers == [("content-type", b"application/x-protobuf")]


def test_a_request_belongs_to_the_trace_that_its_header_names() -> None:
    parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    value = QUESTION.SerializeToString()
    assert request_of(value, ("traceparent", parent)).traceparent == parent
    assert request_of(value).traceparent is None


def test_a_record_put_back_from_the_dead_letters_is_known_by_its_header() -> None:
    value = QUESTION.SerializeToString()
    assert request_of(value, ("dlt-redrives", b"1")).redriven
    assert not request_of(value, ("content-type", b"application/x-protobuf")).redriven


@pytest.mark.parametrize("document", [{"requestId": "j"}, {"request_id": "j"}])
def test_json_is_read_in_either_spelling_and_answered_in_json(document: dict[str, object]) -> None:
    value = json.dumps(document | {"inputs": [{"text": "ein Text"}], "encoding": "ENCODING_INT8"}).encode()
    request = request_of(value, ("content-type", b"application/json; charset=UTF-8"))
    assert (request.request_id, list(request.inputs), request.options.encoding) == ("j", ["ein Text"], pb.ENCODING_INT8)
    assert origin_of(request).route.json
    assert origin_of(request).route.headers == [("content-type", b"application/json")]


def test_plain_text_is_one_query_answered_in_json() -> None:
    request = request_of("où est la gare ?".encode(), ("content-type", b"text/plain"))
    assert list(request.inputs) == ["où est la gare ?"]
    assert origin_of(request).route.json


def test_an_empty_text_is_a_request_with_a_failed_input() -> None:
    request = request_of(b"", ("content-type", b"text/plain"))
    assert request.remaining == 0
    assert isinstance(request.outcomes[0], Failure)


@pytest.mark.parametrize(
    ("given_time", "left_s"),
    [
        (b"2026-01-01T00:00:10Z", 10.0),
        (b"2026-01-01t00:00:10.250z", 10.25),
        (b"2026-01-01T01:00:30+01:00", 30.0),
        (b"2025-12-31T23:59:00.123456789Z", -59.876544),
    ],
)
def test_an_expiry_becomes_a_monotonic_deadline(given_time: bytes, left_s: float) -> None:
    request = request_of(QUESTION.SerializeToString(), ("ce_expirytime", given_time))
    assert request.deadline_s == pytest.approx(RECEIVED_S + left_s)


def test_the_earlier_of_two_deadlines_holds() -> None:
    message = pb.EmbedRequest(inputs=[pb.Input(text="a")])
    message.expire_time.FromSeconds(int(WALL_S) + 5)
    for expiry, left_s in ((b"2026-01-01T00:00:10Z", 5.0), (b"2026-01-01T00:00:01Z", 1.0)):
        request = request_of(message.SerializeToString(), ("ce_expirytime", expiry))
        assert request.deadline_s == RECEIVED_S + left_s


@pytest.mark.parametrize(
    ("answer", "deadline_s", "revision"),
    [
        (Answer("small", "r1"), inf, "r1"),
        (Answer("other", "r1"), inf, ""),
        (EXPIRED, RECEIVED_S, ""),
        (None, inf, ""),
    ],
)
def test_a_record_that_may_have_been_answered_expires_only_if_it_did(
    answer: Answer | None, deadline_s: float, revision: str
) -> None:
    in_flight = in_flight_of(QUESTION.SerializeToString(), [("ce_expirytime", b"2026-01-01T00:00:10Z")])
    before = () if answer is None else (Span(40, 44, answer),)
    for highest, replay in ((41, False), (42, True)):
        in_flight.committed_offset.answered_before = Answered(highest, before)
        request = read(in_flight)
        assert isinstance(request, Request)
        assert request.replay is replay
        assert request.deadline_s == (deadline_s if replay else RECEIVED_S + 10.0)
        assert request.replay_revision == (revision if replay else "")


@pytest.mark.parametrize(
    "no_time", [b"tomorrow", b"20260101T000000Z", b"2026-13-01T00:00:00Z", b"2026-02-30T00:00:00Z"]
)
def test_a_malformed_expiry_is_answered_by_its_request_s_id(no_time: bytes) -> None:
    result = refused(
        QUESTION.SerializeToString(), ("ce_expirytime", no_time), ("ce_id", b"event-7"), ("correlation_id", b"c")
    )
    assert isinstance(result.error, InvalidRequest)
    assert "RFC 3339" in str(result.error)
    assert (result.request_id, result.dead_letter) == ("q-1", False)
    assert result.route is not None
    assert ("correlation_id", b"c") in result.route.headers


@pytest.mark.parametrize(
    ("value", "content_type"),
    [
        (None, b""),
        (b"\xff\xff\xff", b""),
        (b"\x0a\x02\xff\xfe", b""),  # a string that is not UTF-8
        (b"", b"application/json"),
        (b"[1, 2]", b"application/json"),
        (b'{"a": \xff}', b"application/json"),
        (b"[" * 900, b"application/json"),
        (b'{"n": ' + b"9" * 5000 + b"}", b"application/json"),
        (b"\xff", b"text/plain"),
        (b"<a/>", b"application/xml"),
        (b"text", b"text/plain; charset=latin-1"),
        (b"text", b"\xff"),
    ],
)
def test_bytes_that_are_no_request_are_answered_and_kept(value: bytes | None, content_type: bytes) -> None:
    in_flight = in_flight_of(value, [("content-type", content_type), ("ce_id", b"event-7")])
    result = decode_record(
        in_flight, intakes(KafkaSettings(), KAFKA, "small")["embed.requests.v1"], received_s=0, wall_s=0
    )
    assert isinstance(result, Refused)
    assert isinstance(result.error, Undecodable | InvalidRequest)
    assert result.route is not None
    assert result.dead_letter


@pytest.mark.parametrize("content_type", [None, b"application/x-protobuf", b"application/json"])
def test_framing_of_a_schema_registry_is_named(content_type: bytes | None) -> None:
    framed = b"\0\0\0\0\x07" + (QUESTION.SerializeToString() if content_type != b"application/json" else b"{}")
    told = refused(framed, *([("content-type", content_type)] if content_type else []))
    assert str(told.error) == (
        "the value begins with magic byte 0, as a Schema Registry's serializers frame it: send the message alone"
    )
    assert told.dead_letter


def test_a_byte_order_mark_before_json_is_no_fault() -> None:
    value = b'\xef\xbb\xbf{"inputs": [{"text": "a"}]}'
    assert list(request_of(value, ("content-type", b"application/json")).inputs) == ["a"]


@pytest.mark.parametrize("value", [b'{"inputs": [{"text": "a"}]}', b"why is the sky blue"])
def test_a_value_without_a_content_type_is_told_how_it_was_read(value: bytes) -> None:
    assert str(refused(value).error) == (
        "the value is not an EmbedRequest in protobuf, as which a value without a content-type is read:"
        " for JSON or text send content-type application/json or text/plain"
    )


def test_a_request_without_inputs_is_answered_by_its_id_and_not_kept() -> None:
    result = refused(pb.EmbedRequest(request_id="q-9").SerializeToString())
    assert isinstance(result.error, InvalidRequest)
    assert (result.request_id, result.dead_letter) == ("q-9", False)
    assert result.route is not None


async def test_one_bad_record_harms_no_other() -> None:
    good = QUESTION.SerializeToString()
    in_flight_records = [in_flight_of(good), in_flight_of(b"\xff"), in_flight_of(good, topic="team-b.in")]
    requests, bad = await decode_all(in_flight_records, topics(), received_s=RECEIVED_S, wall_s=WALL_S)
    assert [record_of(request) for request in requests] == [in_flight_records[0], in_flight_records[2]]
    assert [each.in_flight for each in bad] == [in_flight_records[1]]


async def test_large_records_are_read_beside_the_event_loop_and_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []

    def noted(in_flight: InFlightRecord, *arguments: Any, **named: Any) -> Request | Refused:
        threads.append(threading.current_thread())
        return decode_record(in_flight, *arguments, **named)

    monkeypatch.setattr(kafka_decode, "decode_record", noted)
    long = {"requestId": "long", "inputs": [{"tokenIds": {"ids": list(range(50_000))}}]}
    plain = pb.EmbedRequest(request_id="protobuf", inputs=[pb.Input(text="a" * 50_000)])
    json_type = ("content-type", b"Application/JSON")
    in_flight_records = [
        in_flight_of(json.dumps(long).encode(), [json_type]),
        in_flight_of(plain.SerializeToString(), [("ce_expirytime", b"2025-12-31T23:00:00Z")]),
        in_flight_of(b'{"requestId": "odd"}'.ljust(50_000), [json_type]),
    ]
    fetched = [Fetched(in_flight, RECEIVED_S + number, WALL_S) for number, in_flight in enumerate(in_flight_records)]
    requests, bad = await decode_large(fetched, intakes(KafkaSettings(), KAFKA, "small"))
    assert [(request.request_id, request.received_s) for request in requests] == [
        ("long", RECEIVED_S),
        ("protobuf", RECEIVED_S + 1),
    ]
    assert [request.deadline_s for request in requests] == [inf, RECEIVED_S + 1 - 3600.0]
    assert [each.request_id for each in bad] == ["odd"]
    assert len(threads) == 3
    assert threading.current_thread() not in threads


async def test_what_nobody_thought_of_is_named_by_its_kind_and_place_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Request | Refused:
        raise ZeroDivisionError("the text of a query")

    monkeypatch.setattr(kafka_decode, "decode_record", broken)
    in_flight = in_flight_of(QUESTION.SerializeToString(), partition=5, offset=17)
    _, [kept] = await decode_all([in_flight], topics(), received_s=RECEIVED_S, wall_s=WALL_S)
    assert (kept.in_flight, kept.request_id, kept.route, kept.dead_letter) == (in_flight, "", None, True)
    [told] = caplog.records
    assert (told.__dict__["error"], told.__dict__["partition"], told.__dict__["offset"]) == ("ZeroDivisionError", 5, 17)
    assert "text of a query" not in caplog.text


def test_a_requests_tenant_counts_only_if_trusted_and_the_topic_has_none() -> None:
    claimed = pb.EmbedRequest(inputs=[pb.Input(text="a")], tenant="claimed").SerializeToString()
    found: list[str] = []
    for trusts_tenant in (True, False):
        for topic in ("embed.requests.v1", "team-b.in"):
            intake = topics(trusts_tenant=trusts_tenant)[topic]
            request = decode_record(in_flight_of(claimed, topic=topic), intake, received_s=0.0, wall_s=0.0)
            assert isinstance(request, Request)
            found.append(request.tenant)
    assert found == ["claimed", "team-b", "", "team-b"]


@pytest.mark.parametrize(
    "content_type",
    [
        *(b'text/plain; charset="utf-8"', b"text/plain;charset=UTF8", b"Text/Plain ; charset= us-ascii "),
        *(b"text/plain; format=flowed", b"text/plain;", b'text/plain; format=flowed; charset="utf8"'),
    ],
)
def test_parameters_of_a_content_type_that_mean_utf8_are_taken(content_type: bytes) -> None:
    assert list(request_of(b"a text", ("content-type", content_type)).inputs) == ["a text"]


def test_a_record_of_the_greatest_size_is_read() -> None:
    for more, kind in ((0, Request), (1, Refused)):
        text = "a" * (1000 - 6 + more)
        value = pb.EmbedRequest(inputs=[pb.Input(text=text)]).SerializeToString()
        assert (len(value), type(read(in_flight_of(value)))) == (1000 + more, kind)


def test_a_cloudevents_id_names_a_request_without_one_of_its_own() -> None:
    nameless = pb.EmbedRequest(inputs=[pb.Input(text="a")]).SerializeToString()
    assert request_of(nameless, ("ce_id", b"event-1")).request_id == "event-1"
    assert request_of(QUESTION.SerializeToString(), ("ce_id", b"event-1")).request_id == "q-1"
    assert refused(b"\xff", ("ce_id", b"event-1")).request_id == "event-1"


@pytest.mark.parametrize("value", [b"\x0a\x03abc\xff", b"\xff", None])
def test_a_record_that_cannot_be_decoded_is_named_by_its_place(value: bytes | None) -> None:
    assert refused(value).request_id == "embed.requests.v1-3-42"
