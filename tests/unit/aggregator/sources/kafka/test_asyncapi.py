"""docs/asyncapi.yaml says of the topics what the code reads and writes, no more and no less."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict

from aggregator.errors import Code
from aggregator.request.request import Failure, Request
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka import decode
from aggregator.sources.kafka.answered import Answered
from aggregator.sources.kafka.decode import intakes, record_of
from aggregator.sources.kafka.offsets import Header
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.replies import DeadLetter, encode_replies
from aggregator.sources.wire.values import RESPONSES, TASKS, content_type_of
from protos.embedding.v1 import embedding_pb2 as pb
from protos.generation.v1.generation_pb2 import GenerateRequest, GenerateResponse
from protos.ranking.v1.ranking_pb2 import RankRequest, RankResponse
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of

PAGE: dict[str, Any] = yaml.safe_load(Path("docs/asyncapi.yaml").read_text(encoding="utf-8"))
SCHEMAS: dict[str, Any] = PAGE["components"]["schemas"]
MESSAGES: dict[str, Any] = PAGE["components"]["messages"]
SETTINGS = KafkaSettings(
    topics=tuple(TopicSettings.model_validate({"name": name, "task": name}) for name in TASKS),
    allowed_reply_topics=("*",),
)
REQUESTS = {"embed": pb.EmbedRequest, "rank": RankRequest, "generate": GenerateRequest}
ROOTS = (pb.EmbedRequest, pb.EmbedResponse, RankRequest, RankResponse, GenerateRequest, GenerateResponse)
WELL_KNOWN: dict[str, dict[str, Any]] = {
    "Timestamp": {"type": "string", "format": "date-time"},
    "Duration": {"type": "string"},
}
PLAIN: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0},
    FieldDescriptor.TYPE_INT32: {"type": "integer"},
    FieldDescriptor.TYPE_INT64: {"type": ["integer", "string"]},
    FieldDescriptor.TYPE_FLOAT: {"type": "number"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
}
BY_CONTENT_TYPE = {"application/x-protobuf": "Protobuf", "application/json": "Json", "text/plain": "Text"} | {
    "application/cloudevents+json": "CloudEvent"
}


def contained(descriptor: Descriptor) -> Iterator[Descriptor | EnumDescriptor]:
    """A message, and the messages and enums in it."""
    yield descriptor
    for field in descriptor.fields:
        if field.enum_type is not None:
            yield field.enum_type
        elif field.message_type is not None and field.message_type.name not in WELL_KNOWN:
            yield from contained(field.message_type)


def named(descriptor: Descriptor | EnumDescriptor) -> str:
    """As in the page, where both tasks have Timings."""
    package = descriptor.full_name.partition(".")[0].capitalize() if descriptor.name == "Timings" else ""
    return package + descriptor.name


def schema_of(field: FieldDescriptor) -> dict[str, Any]:
    kind = field.message_type or field.enum_type
    if kind is None:
        one: dict[str, Any] = PLAIN[field.type]
    else:
        one = WELL_KNOWN.get(kind.name) or {"$ref": f"#/components/schemas/{named(kind)}"}
    return {"type": "array", "items": one} if field.is_repeated else one


@cache
def known() -> dict[str, Descriptor | EnumDescriptor]:
    roots: list[Any] = [root.DESCRIPTOR for root in ROOTS]
    return {named(each): each for root in roots for each in contained(root)}


def test_the_schemas_are_those_of_the_messages() -> None:
    others = {"RequestHeaders", "ReplyHeaders", "DeadLetterHeaders", "RequestEvent", "ReplyEvent"}
    assert SCHEMAS.keys() - others == known().keys()


@pytest.mark.parametrize("name", sorted(known()))
def test_a_schema_has_the_fields_of_its_message_and_their_types(name: str) -> None:
    descriptor, schema = known()[name], SCHEMAS[name]
    if isinstance(descriptor, EnumDescriptor):
        assert schema == {"type": "string", "enum": [value.name for value in descriptor.values]}
        return
    assert schema["additionalProperties"] is False
    wanted = {field.json_name: schema_of(field) for field in descriptor.fields}
    told = schema["properties"]
    assert told.keys() == wanted.keys()
    assert {each: {key: told[each].get(key) for key in wanted[each]} for each in wanted} == wanted


def headers_in(schema: str) -> set[str]:
    return set(SCHEMAS[schema]["properties"])


def topic_of(message: str) -> str:
    return next(task for task in TASKS if message.startswith(task))


def read(message: str, value: bytes, *headers: Header) -> Request:
    topic = topic_of(message)
    taken = decode.decode_record(
        in_flight_of(value, headers, topic=topic), intakes(SETTINGS, KAFKA, "m")[topic], received_s=0.0, wall_s=0.0
    )
    assert isinstance(taken, Request), taken
    return taken


def reply_of(request: Request) -> OutgoingRecord:
    request.fail(Failure(Code.OUT_OF_RANGE, "too long"))
    record_of(request).committed_offset.answered_before = Answered(record_of(request).offset)
    return encode_replies([request], "group")[0]


def test_the_headers_of_requests_are_those_that_are_read_or_copied() -> None:
    assert headers_in("RequestHeaders") == decode.READ | decode.ECHOED


def test_the_headers_of_replies_are_those_that_are_written() -> None:
    given: list[Header] = [(name, b"0") for name in decode.ECHOED if name != "kafka_replyPartition"]
    given += [("kafka_replyPartition", bytes(4)), ("content-type", b"text/plain"), ("ce_specversion", b"1.0")]
    given += [("ce_id", b"7"), ("ce_correlationid", b"c"), ("other", b"x")]
    assert {name for name, _ in reply_of(read("embed", b"text", *given)).headers} == headers_in("ReplyHeaders")


def test_the_headers_of_dead_letters_are_those_that_are_added() -> None:
    too_large = in_flight_of(b"value", [("own", bytes(40_000))])
    record = DeadLetter(too_large, Code.INTERNAL, "it broke", omits_value=True).record("group")
    assert {name for name, _ in record.headers} == headers_in("DeadLetterHeaders")


def test_the_attributes_of_a_structured_reply_are_those_that_are_written() -> None:
    event = {"specversion": "1.0", "id": "7", "correlationid": "c", "data": {"inputs": [{"text": "rain"}]}}
    value = json.dumps(event).encode()
    reply = reply_of(read("embed", value, ("content-type", b"application/cloudevents+json")))
    assert set(json.loads(reply.value or b"")) == set(SCHEMAS["ReplyEvent"]["properties"])


@pytest.mark.parametrize("task", TASKS)
def test_a_topic_has_a_message_for_each_content_type_that_is_read(task: str) -> None:
    channel = PAGE["channels"][f"{task}Requests"]
    told = {MESSAGES[name]["contentType"]: name for name in channel["messages"]}
    ranks = task == "rank"  # a text by itself is no query with documents
    assert told == {
        key: f"{task}Request{name}" for key, name in BY_CONTENT_TYPE.items() if not (ranks and name == "Text")
    }
    assert {content_type_of(each).decode() for each in told if "cloudevents" not in each} <= told.keys()
    replies = PAGE["channels"][f"{task}Replies"]
    assert replies["address"] == (SETTINGS.replies_of(SETTINGS.topics[[*TASKS].index(task)]))
    assert RESPONSES[TASKS[task]].DESCRIPTOR.name in SCHEMAS


def validate(message: str, payload: object) -> None:
    schema = {**MESSAGES[message]["payload"], "components": PAGE["components"]}
    jsonschema.validate(payload, schema, cls=jsonschema.Draft7Validator)


def examples(kind: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, example) for name, message in MESSAGES.items() for example in message.get("examples", ()) if kind in name
    ]


@pytest.mark.parametrize(("message", "example"), examples("Request"))
def test_an_example_of_a_request_is_decoded(message: str, example: dict[str, Any]) -> None:
    validate(message, example["payload"])
    payload = example["payload"]
    value = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
    headers = [(name, text.encode()) for name, text in example["headers"].items()]
    assert "content-type" in example["headers"]
    request = read(message, value, *headers)
    if not isinstance(payload, str):
        data = payload.get("data", payload)
        assert request.request_id == data["requestId"]
        as_json = read(message, json.dumps(data).encode(), ("content-type", b"application/json"))
        same = ParseDict(data, REQUESTS[topic_of(message)]()).SerializeToString()
        as_protobuf = read(message, same, ("content-type", b"application/x-protobuf"))
        assert [list(each.inputs) for each in (as_json, as_protobuf)] == [list(request.inputs)] * 2


@pytest.mark.parametrize(("message", "example"), examples("Reply"))
def test_an_example_of_a_reply_is_a_reply(message: str, example: dict[str, Any]) -> None:
    validate(message, example["payload"])
    data = example["payload"].get("data", example["payload"])
    assert ParseDict(data, RESPONSES[TASKS[topic_of(message)]]()).reply_id == data["replyId"]


@pytest.mark.parametrize(("task", "structured"), list(product(TASKS, [False, True])))
def test_a_reply_as_it_is_written_fits_the_schema(task: str, *, structured: bool) -> None:
    message, example = next(each for each in examples("RequestJson") if each[0].startswith(task))
    event = {"specversion": "1.0", "id": "7", "data": example["payload"]}
    content_type = b"application/cloudevents+json" if structured else b"application/json"
    value = json.dumps(event if structured else example["payload"]).encode()
    written = json.loads(reply_of(read(message, value, ("content-type", content_type))).value or b"")
    validate(f"{task}Reply{'CloudEvent' if structured else 'Json'}", written)


def test_a_payload_of_another_form_does_not_fit() -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate("embedReplyJson", {"requestId": "q", "vector": []})
    with pytest.raises(jsonschema.ValidationError):
        validate("embedRequestCloudEvent", {"specversion": "0.3", "id": "1", "source": "/", "type": "t", "data": ""})


def test_the_vector_of_the_example_has_its_dimensions() -> None:
    vector = examples("embedReplyJson")[0][1]["payload"]["embeddings"][0]
    assert len(base64.b64decode(vector["embedding"])) == 4 * vector["dimensions"]
