"""A CloudEvent is read in both content modes, and its reply is an event of the same mode; other replies are none."""

from __future__ import annotations

import base64
import json
import re
from math import isclose
from typing import Any

import pytest

from aggregator.errors import Code
from aggregator.registry import KINDS
from aggregator.request.request import Failure, Request
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.decode import Refused, decode_record, intakes
from aggregator.sources.kafka.offsets import Header
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.replies import encode_refusal, encode_reply
from aggregator.wings.cloud_events.envelope import CLOUD_EVENTS
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of

GROUP = "team a/ä"
WALL_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z
SETTINGS = KafkaSettings.model_validate(
    {"topics": [{"name": "in"}, *({"name": kind.name, "task": kind.name} for kind in KINDS)]}
)
TYPES = {
    "embed": "embedding.v1.EmbedResponse",
    "generate": "generation.v1.GenerateResponse",
    "rank": "ranking.v1.RankResponse",
    "token_vectors": "token_vectors.v1.EmbedTokensResponse",
}
"""Of the events that answer each task."""
DATA = {"inputs": [{"text": "reïn"}]}
BINARY: list[Header] = [
    *[("ce_specversion", b"1.0"), ("ce_id", b"event-7"), ("ce_source", b"/shop"), ("ce_type", b"question")],
    *[("content-type", b"application/json"), ("ce_correlationid", b"order-1"), ("ce_other", b"x")],
    ("kafka_correlationId", b"\0\1"),
]
EVENT = {"specversion": "1.0", "id": "event-7", "source": "/shop", "type": "question", "correlationid": "order-1"}
STRUCTURED: list[Header] = [
    ("content-type", b"Application/CloudEvents+JSON; charset=utf-8"),
    ("ce_id", b"of-no-meaning"),
    ("kafka_correlationId", b"\0\1"),
]
OF_REPLY = {
    "specversion": "1.0",
    "source": "/tokenbatch/team%20a%2F%C3%A4",
    "type": "embedding.v1.EmbedResponse",
    "subject": "event-7",
    "causationid": "event-7",
    "correlationid": "order-1",
}


def read(value: bytes | None, headers: list[Header], topic: str = "in") -> Request | Refused:
    in_flight = in_flight_of(value, headers, topic=topic)
    intake = intakes(SETTINGS, KAFKA, "small", kinds=KINDS, envelopes=[CLOUD_EVENTS])[topic]
    return decode_record(in_flight, intake, received_s=0.0, wall_s=WALL_S)


def replied(value: bytes | None, headers: list[Header], topic: str = "in") -> OutgoingRecord:
    taken = read(value, headers, topic)
    if isinstance(taken, Refused):
        return encode_refusal(taken, GROUP)
    taken.fail(Failure(Code.OUT_OF_RANGE, "too long"))
    return encode_reply(taken, GROUP)


def event(**changed: Any) -> bytes:
    whole = {**EVENT, "data": DATA, **changed}
    return json.dumps({name: value for name, value in whole.items() if value is not None}).encode()


def request_of(value: bytes) -> Request:
    taken = read(value, STRUCTURED)
    assert isinstance(taken, Request), taken
    return taken


def check_attributes(found: dict[str, str], reply_id: str) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {**OF_REPLY, "id": reply_id}


def test_the_reply_to_a_binary_event_has_its_attributes_in_headers() -> None:
    reply = replied(json.dumps(DATA).encode(), BINARY)
    answer = json.loads(reply.value or b"")
    assert reply.headers[:2] == [("content-type", b"application/json"), ("kafka_correlationId", b"\0\1")]
    found = {name.removeprefix("ce_"): value.decode() for name, value in reply.headers[2:]}
    assert all(name.startswith("ce_") for name, _ in reply.headers[2:])
    check_attributes(found, answer["replyId"])
    assert answer["status"]["code"] == Code.OUT_OF_RANGE


def test_the_reply_to_a_structured_event_has_its_attributes_and_json_data() -> None:
    reply = replied(event(), STRUCTURED)
    assert reply.headers == [("content-type", b"application/cloudevents+json"), ("kafka_correlationId", b"\0\1")]
    found = json.loads(reply.value or b"")
    assert found.pop("datacontenttype") == "application/json"
    data = found.pop("data")
    check_attributes(found, data["replyId"])
    assert (data["requestId"], data["status"]["code"]) == ("event-7", Code.OUT_OF_RANGE)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"datacontenttype": "application/json; charset=utf-8"},
        {"data": "reïn", "datacontenttype": "text/plain"},
        {
            "data": None,
            "data_base64": base64.b64encode(
                pb.EmbedRequest(inputs=[pb.Input(text="reïn")]).SerializeToString()
            ).decode(),
            "datacontenttype": "application/x-protobuf",
        },
        {"data": None, "data_base64": base64.b64encode(json.dumps(DATA).encode()).decode()},
    ],
    ids=["json", "json by name", "text", "protobuf", "json in base64"],
)
def test_the_data_of_a_structured_event_is_read_by_its_content_type(given: dict[str, Any]) -> None:
    request = request_of(event(**given))
    assert (list(request.inputs), request.request_id) == (["reïn"], "event-7")


def test_an_event_s_expiry_is_a_deadline_in_both_modes() -> None:
    structured = request_of(event(expirytime="2026-01-01T00:00:07Z"))
    binary = read(json.dumps(DATA).encode(), [*BINARY, ("ce_expirytime", b"2026-01-01T00:00:07Z")])
    assert isinstance(binary, Request)
    assert isclose(structured.deadline_s, 7.0)
    assert isclose(binary.deadline_s, 7.0)


def test_an_event_without_an_id_is_named_by_its_place_and_causes_nothing() -> None:
    found = json.loads(replied(event(id=None, correlationid=None), STRUCTURED).value or b"")
    assert found["subject"].startswith("in-")
    assert not {"causationid", "correlationid"} & found.keys()


@pytest.mark.parametrize("request_id", ["a\nb", "\x7f"])
def test_what_no_attribute_may_hold_is_left_out(request_id: str) -> None:
    found = json.loads(replied(event(data={**DATA, "requestId": request_id}), STRUCTURED).value or b"")
    assert "subject" not in found
    assert found["data"]["requestId"] == request_id


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"{", "the value is not JSON in UTF-8"),
        (b"\xff", "the value is not JSON in UTF-8"),
        (b"[" * 4000, "the value is not JSON in UTF-8"),
        (b"[]", "the value is not a JSON object"),
        (event(specversion="0.3"), "the value is not a CloudEvent in JSON with specversion 1.0"),
        (event(id=7), "the event's id is not a string"),
        (event(datacontenttype=7), "the event's datacontenttype is not a string"),
        (event(data=None), "the event has neither data nor data_base64, a string in base64"),
        (event(data_base64="ä"), "the event's data_base64 is not base64"),
        (event(data="text"), "the value is not a JSON object"),
        (event(data="\ud800", datacontenttype="text/plain"), "the value is not UTF-8 text"),
        (b"[" * 20_000, "the value holds more than 14336 strings"),
        (None, "there is no value"),
    ],
)
def test_a_structured_event_that_cannot_be_read_is_answered_by_an_event(value: bytes | None, says: str) -> None:
    refused = read(value, STRUCTURED)
    assert isinstance(refused, Refused)
    assert refused.dead_letter
    found = json.loads(encode_refusal(refused, GROUP).value or b"")
    assert found["type"] == OF_REPLY["type"]
    assert found["data"]["status"]["message"].startswith(says)


@pytest.mark.parametrize("task", [kind.name for kind in KINDS])
def test_a_type_is_that_of_the_topic_s_replies(task: str) -> None:
    found = json.loads(replied(event(data={}), STRUCTURED, task).value or b"")
    assert found["type"] == TYPES[task]


@pytest.mark.parametrize("version", [None, b"0.3", b"2.0"])
def test_other_records_with_such_headers_are_answered_as_before(version: bytes | None) -> None:
    headers = [header for header in BINARY if header[0] != "ce_specversion"]
    if version is not None:
        headers.append(("ce_specversion", version))
    reply = replied(json.dumps(DATA).encode(), headers)
    assert reply.headers == [("content-type", b"application/json"), ("kafka_correlationId", b"\0\1")]
    assert json.loads(reply.value or b"")["requestId"] == "event-7"
