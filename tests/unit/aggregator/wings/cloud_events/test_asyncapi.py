"""docs/asyncapi.yaml says of CloudEvents what the code reads and writes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from aggregator.sources.kafka import decode
from aggregator.sources.kafka.offsets import Header
from aggregator.wings.cloud_events.envelope import CLOUD_EVENTS
from tests.support.asyncapi_page import (
    MESSAGES,
    PAGE,
    SCHEMAS,
    TASKS,
    check_request,
    examples,
    headers_in,
    is_plain,
    read,
    reply_of,
    validate,
)

STRUCTURED: Header = ("content-type", b"application/cloudevents+json")


def test_the_headers_of_requests_are_those_that_are_read_or_copied() -> None:
    assert headers_in("RequestHeaders") == decode.READ | decode.ECHOED | CLOUD_EVENTS.headers


def test_the_headers_of_replies_are_those_that_are_written() -> None:
    given: list[Header] = [(name, b"0") for name in decode.ECHOED if name != "kafka_replyPartition"]
    given += [("kafka_replyPartition", bytes(4)), ("content-type", b"text/plain"), ("ce_specversion", b"1.0")]
    given += [("ce_id", b"7"), ("ce_correlationid", b"c"), ("other", b"x")]
    reply = reply_of(read("embed", b"text", *given, envelopes=[CLOUD_EVENTS]))
    assert {name for name, _ in reply.headers} == headers_in("ReplyHeaders")


def test_the_attributes_of_a_structured_reply_are_those_that_are_written() -> None:
    event = {"specversion": "1.0", "id": "7", "correlationid": "c", "data": {"inputs": [{"text": "rain"}]}}
    reply = reply_of(read("embed", json.dumps(event).encode(), STRUCTURED, envelopes=[CLOUD_EVENTS]))
    assert set(json.loads(reply.value or b"")) == set(SCHEMAS["ReplyEvent"]["properties"])


@pytest.mark.parametrize("task", TASKS)
def test_each_topic_has_a_message_for_structured_events(task: str) -> None:
    events = {name for name in PAGE["channels"][f"{task}Requests"]["messages"] if not is_plain(name)}
    assert events == {f"{task}RequestCloudEvent"}
    assert MESSAGES[f"{task}RequestCloudEvent"]["contentType"] == STRUCTURED[1].decode()


@pytest.mark.parametrize(("message", "example"), [each for each in examples("Request") if not is_plain(each[0])])
def test_an_example_of_an_event_is_decoded(message: str, example: dict[str, Any]) -> None:
    check_request(message, example, [CLOUD_EVENTS])


@pytest.mark.parametrize("task", TASKS)
def test_a_reply_as_it_is_written_fits_the_schema(task: str) -> None:
    message, example = next(each for each in examples("RequestJson") if each[0].startswith(task))
    event = json.dumps({"specversion": "1.0", "id": "7", "data": example["payload"]}).encode()
    written = json.loads(reply_of(read(message, event, STRUCTURED, envelopes=[CLOUD_EVENTS])).value or b"")
    validate(f"{task}ReplyCloudEvent", written)


def test_an_event_of_another_version_does_not_fit() -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate("embedRequestCloudEvent", {"specversion": "0.3", "id": "1", "source": "/", "type": "t", "data": ""})
