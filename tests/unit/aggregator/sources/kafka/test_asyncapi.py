"""docs/asyncapi.yaml says of the topics what the code reads and writes, no more and no less."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict

from aggregator.errors import Code, InvalidRequest
from aggregator.request.kind import Kind
from aggregator.sources.kafka import decode
from aggregator.sources.kafka.offsets import Header
from aggregator.sources.kafka.replies import DeadLetter
from aggregator.sources.wire.values import content_type_of
from protos.embedding.v1 import embedding_pb2 as pb
from protos.generation.v1.generation_pb2 import GenerateRequest, GenerateResponse
from protos.ranking.v1.ranking_pb2 import RankRequest, RankResponse
from protos.token_vectors.v1.token_vectors_pb2 import EmbedTokensResponse
from tests.support.asyncapi_page import (
    MESSAGES,
    PAGE,
    SCHEMAS,
    SETTINGS,
    TASKS,
    check_request,
    examples,
    headers_in,
    is_plain,
    read,
    reply_of,
    topic_of,
    validate,
)
from tests.support.records import in_flight_of

ROOTS = (
    *(pb.EmbedRequest, pb.EmbedResponse),
    *(RankRequest, RankResponse),
    *(GenerateRequest, GenerateResponse),
    EmbedTokensResponse,
)
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
BY_CONTENT_TYPE = {"application/x-protobuf": "Protobuf", "application/json": "Json", "text/plain": "Text"}


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


def test_the_headers_of_requests_are_those_that_are_read_or_copied() -> None:
    assert headers_in("RequestHeaders") >= decode.READ | decode.ECHOED


def test_the_headers_of_replies_are_those_that_are_written() -> None:
    given: list[Header] = [(name, b"0") for name in decode.ECHOED if name != "kafka_replyPartition"]
    given += [("kafka_replyPartition", bytes(4)), ("content-type", b"text/plain"), ("other", b"x")]
    written = {name for name, _ in reply_of(read("embed", b"text", *given)).headers}
    assert written == {name for name in headers_in("ReplyHeaders") if not name.startswith("ce_")}


def test_the_headers_of_dead_letters_are_those_that_are_added() -> None:
    too_large = in_flight_of(b"value", [("own", bytes(40_000))])
    record = DeadLetter(too_large, Code.INTERNAL, "it broke", omits_value=True).record("group")
    assert {name for name, _ in record.headers} == headers_in("DeadLetterHeaders")


def reads_text(kind: Kind) -> bool:
    """Whether a text by itself is a request: it is no query with documents."""
    try:
        return kind.decode_text("a") is not None
    except InvalidRequest:
        return False


@pytest.mark.parametrize("task", TASKS)
def test_a_topic_has_a_message_for_each_content_type_that_is_read(task: str) -> None:
    channel = PAGE["channels"][f"{task}Requests"]
    told = {MESSAGES[name]["contentType"]: name for name in channel["messages"] if is_plain(name)}
    assert told == {
        key: f"{task}Request{name}"
        for key, name in BY_CONTENT_TYPE.items()
        if name != "Text" or reads_text(TASKS[task])
    }
    assert {content_type_of(each).decode() for each in told} <= told.keys()
    replies = PAGE["channels"][f"{task}Replies"]
    assert replies["address"] == (SETTINGS.replies_of(SETTINGS.topics[[*TASKS].index(task)]))
    assert TASKS[task].response.DESCRIPTOR.name in SCHEMAS


@pytest.mark.parametrize(("message", "example"), [each for each in examples("Request") if is_plain(each[0])])
def test_an_example_of_a_request_is_decoded(message: str, example: dict[str, Any]) -> None:
    check_request(message, example)


@pytest.mark.parametrize(("message", "example"), examples("Reply"))
def test_an_example_of_a_reply_is_a_reply(message: str, example: dict[str, Any]) -> None:
    validate(message, example["payload"])
    data = example["payload"].get("data", example["payload"])
    assert ParseDict(data, TASKS[topic_of(message)].response()).reply_id == data["replyId"]


@pytest.mark.parametrize("task", TASKS)
def test_a_reply_as_it_is_written_fits_the_schema(task: str) -> None:
    message, example = next(each for each in examples("RequestJson") if each[0].startswith(task))
    value = json.dumps(example["payload"]).encode()
    written = json.loads(reply_of(read(message, value, ("content-type", b"application/json"))).value or b"")
    validate(f"{task}ReplyJson", written)


def test_a_payload_of_another_form_does_not_fit() -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate("embedReplyJson", {"requestId": "q", "vector": []})


def test_the_vector_of_the_example_has_its_dimensions() -> None:
    vector = examples("embedReplyJson")[0][1]["payload"]["embeddings"][0]
    assert len(base64.b64decode(vector["embedding"])) == 4 * vector["dimensions"]
