"""Replies go where the request says, if that is allowed; what cannot be routed answers nobody and is kept."""

from __future__ import annotations

import struct
from functools import cache

import pytest

from aggregator.errors import InvalidRequest, NotPermitted
from aggregator.request.request import Request
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka.decode import Refused, ReplyRoute, TopicIntake, decode_record, intakes, origin_of
from aggregator.sources.kafka.offsets import Header
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of

SETTINGS = KafkaSettings(
    topics=(TopicSettings(name="embed.requests.v1"), TopicSettings(name="team-b.in")),
    allowed_reply_topics=("team-a.*", "exact", "embed.*"),
)
QUESTION = pb.EmbedRequest(inputs=[pb.Input(text="why is the sky blue")]).SerializeToString()


@cache
def intake() -> TopicIntake:
    return intakes(SETTINGS, KAFKA, "small")["embed.requests.v1"]


def route_of(*headers: Header) -> ReplyRoute:
    request = decode_record(in_flight_of(QUESTION, headers), intake(), received_s=0, wall_s=0)
    assert isinstance(request, Request), request
    return origin_of(request).route


def refused(*headers: Header) -> Refused:
    result = decode_record(in_flight_of(QUESTION, headers), intake(), received_s=0, wall_s=0)
    assert isinstance(result, Refused), result
    return result


@pytest.mark.parametrize("name", ["kafka_replyTopic", "reply_to"])
@pytest.mark.parametrize("topic", ["team-a.answers", "exact", "embed.replies.v1", "embed.other"])
def test_a_reply_goes_to_an_allowed_topic(name: str, topic: str) -> None:
    route = route_of((name, topic.encode()))
    assert route.topic == topic
    assert route.headers[1:] == [(name, topic.encode())]


def test_spring_s_header_outranks_its_alias() -> None:
    assert route_of(("kafka_replyTopic", b"exact"), ("reply_to", b"team-a.x")).topic == "exact"


@pytest.mark.parametrize(
    "topic", ["team-b.answers", "exactly", "Team-a.x", "embed.requests.v1", "embed.requests.v1-dlt", "team-b.in"]
)
def test_a_topic_that_is_not_allowed_is_refused_and_kept(topic: str) -> None:
    result = refused(("kafka_replyTopic", topic.encode()))
    assert isinstance(result.error, NotPermitted)
    assert (result.route, result.dead_letter) == (None, True)


def test_the_partition_of_the_reply_is_taken_with_or_without_a_topic() -> None:
    assert route_of(("kafka_replyPartition", struct.pack(">i", 7))).partition == 7
    route = route_of(("kafka_replyPartition", struct.pack(">i", 0)), ("kafka_replyTopic", b"exact"))
    assert (route.topic, route.partition) == ("exact", 0)


@pytest.mark.parametrize(
    "header",
    [
        ("kafka_replyPartition", b"\0\0\1"),
        ("kafka_replyPartition", b"\0\0\0\0\1"),
        ("kafka_replyPartition", struct.pack(">i", -1)),
        ("kafka_replyTopic", b"\xff\xfe"),
        ("reply_to", b"no topic!"),
        ("reply_to", b"x" * 250),
    ],
)
def test_a_malformed_route_leaves_nobody_to_answer(header: Header) -> None:
    result = refused(header)
    assert isinstance(result.error, InvalidRequest)
    assert (result.route, result.dead_letter) == (None, True)


def test_routing_and_trace_headers_are_echoed_as_they_came() -> None:
    echoed = [
        ("kafka_correlationId", b"\x00\xff\x80"),
        ("correlation_id", b"one"),
        ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("correlation_id", b"two"),
        ("tracestate", b"a=b"),
    ]
    route = route_of(*echoed[:2], ("private", b"x"), ("ce_id", b"y"), *echoed[2:])
    assert route.headers == [("content-type", b"application/x-protobuf"), *echoed]


def test_where_no_topic_is_allowed_only_the_usual_one_is() -> None:
    alone = intakes(KafkaSettings(topics=(TopicSettings(name="in"),)), KAFKA, "small")["in"]
    assert [alone.permits(topic) for topic in ("embed.replies.v1", "exact", "in", "in-dlt")] == [
        True,
        False,
        False,
        False,
    ]


def test_the_usual_topic_is_allowed_even_where_patterns_leave_it_out() -> None:
    permits = intake().permits
    allowed = ["embed.replies.v1", "team-a.x", "exact"]
    refused_ones = ["team-b.in", "team-b.in-dlt", "embed.requests.v1", "embed.requests.v1-dlt", "team-b.other"]
    assert [permits(topic) for topic in (*allowed, *refused_ones)] == [True] * 3 + [False] * 5
