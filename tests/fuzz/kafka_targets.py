"""Fuzz what comes from Kafka: record values in each format, and their headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aggregator.app import ENVELOPES
from aggregator.errors import Code, RequestError
from aggregator.request.request import Failure, Request
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.decode import Refused, decode_record, intakes
from aggregator.sources.kafka.replies import DeadLetter, encode_refusal, encode_reply
from tests.fuzz.target import Cut, Target
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of

_NOW_S = 1_700_000_000.0
_SETTINGS = KafkaSettings(allowed_reply_topics=("team-*",))
_TOPIC = intakes(_SETTINGS, KAFKA, "m", envelopes=ENVELOPES)["embed.requests.v1"]
_INTAKE = replace(_TOPIC, defaults=replace(_TOPIC.defaults, max_inputs=8), max_record_bytes=3000)
_TEXT = "the text of a query"
_HEADERS = (
    *("content-type", "ce_id", "ce_expirytime", "kafka_replyTopic", "kafka_replyPartition", "reply_to"),
    *("kafka_correlationId", "traceparent", "dlt-error-code", "other", "ce_specversion", "ce_correlationid"),
)
_FAILURE = Failure(Code.INTERNAL, "it broke")


def take(value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> Request | Refused:
    """Decode one record, and write every answer that may become of it."""
    in_flight = in_flight_of(value, headers)
    taken = decode_record(in_flight, _INTAKE, received_s=0.0, wall_s=_NOW_S)
    if isinstance(taken, Refused):
        assert isinstance(taken.error, RequestError), "A refusal has no code that its sender knows."
        if taken.route is not None:
            encode_refusal(taken, "g")
        message, code = str(taken.error), taken.error.code
    else:
        assert len(taken.inputs) == len(taken.outcomes) > 0, "A request has lost an input."
        assert taken.request_id, "A request has no id."
        taken.fail(_FAILURE)
        encode_reply(taken, "g")
        message, code = _FAILURE.message, _FAILURE.code
    for omits_value in (False, True):
        DeadLetter(in_flight, code, message, since_unix_s=_NOW_S, omits_value=omits_value).record("g")
    return taken


def check_protobuf(data: bytes) -> Request | Refused:
    """A value without headers is protobuf."""
    return take(data, ())


def check_json(data: bytes) -> Request | Refused:
    """A value that says it is JSON; what is wrong with it is told without its content."""
    taken = take(data, [("content-type", b"application/json")])
    assert not isinstance(taken, Refused) or _TEXT not in str(taken.error), "A refusal quotes the text of a query."
    return taken


def check_event(data: bytes) -> Request | Refused:
    """A value that says it is a CloudEvent in JSON."""
    taken = take(data, [("content-type", b"application/cloudevents+json")])
    assert not isinstance(taken, Refused) or _TEXT not in str(taken.error), "A refusal quotes the text of a query."
    return taken


def check_headers(data: bytes) -> Request | Refused:
    """Up to 15 headers, known ones and others, some of them null, then a value in whatever format they say."""
    cut = Cut(data)
    headers: list[Any] = [(_HEADERS[cut.byte() % len(_HEADERS)], cut.field() or None) for _ in range(cut.byte() % 16)]
    return take(cut.rest() or None, headers)


TARGETS = (
    Target("kafka_protobuf", check_protobuf),
    Target("kafka_json", check_json),
    Target("kafka_event", check_event),
    Target("kafka_headers", check_headers),
)
