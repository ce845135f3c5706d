"""docs/asyncapi.yaml, and what the code makes of its examples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from google.protobuf.json_format import ParseDict

from aggregator.errors import Code
from aggregator.registry import KINDS
from aggregator.request.request import Failure, Request
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka import decode
from aggregator.sources.kafka.decode import intakes
from aggregator.sources.kafka.envelope import EnvelopeFormat
from aggregator.sources.kafka.offsets import Header
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.replies import encode_reply
from protos.embedding.v1 import embedding_pb2 as pb
from protos.generation.v1.generation_pb2 import GenerateRequest
from protos.ranking.v1.ranking_pb2 import RankRequest
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of

TASKS = {kind.name: kind for kind in KINDS}
PAGE: dict[str, Any] = yaml.safe_load(Path("docs/asyncapi.yaml").read_text(encoding="utf-8"))
SCHEMAS: dict[str, Any] = PAGE["components"]["schemas"]
MESSAGES: dict[str, Any] = PAGE["components"]["messages"]
SETTINGS = KafkaSettings(
    topics=tuple(TopicSettings.model_validate({"name": name, "task": name}) for name in TASKS),
    allowed_reply_topics=("*",),
)
REQUESTS = {
    "embed": pb.EmbedRequest,
    "rank": RankRequest,
    "generate": GenerateRequest,
    "token_vectors": pb.EmbedRequest,
}


def is_plain(message: str) -> bool:
    """Whether a message is a request or reply without an envelope."""
    return "CloudEvent" not in message


def headers_in(schema: str) -> set[str]:
    return set(SCHEMAS[schema]["properties"])


def topic_of(message: str) -> str:
    return next(task for task in TASKS if message.startswith(task))


def read(message: str, value: bytes, *headers: Header, envelopes: Sequence[EnvelopeFormat] = ()) -> Request:
    topic = topic_of(message)
    taken = decode.decode_record(
        in_flight_of(value, headers, topic=topic),
        intakes(SETTINGS, KAFKA, "m", kinds=KINDS, envelopes=envelopes)[topic],
        received_s=0.0,
        wall_s=0.0,
    )
    assert isinstance(taken, Request), taken
    return taken


def reply_of(request: Request) -> OutgoingRecord:
    request.fail(Failure(Code.OUT_OF_RANGE, "too long"))
    request.replay = True
    return encode_reply(request, "group")


def validate(message: str, payload: object) -> None:
    schema = {**MESSAGES[message]["payload"], "components": PAGE["components"]}
    jsonschema.validate(payload, schema, cls=jsonschema.Draft7Validator)


def examples(kind: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, example)
        for name, message in MESSAGES.items()
        for example in message.get("examples", ())
        if kind in name and name.startswith(tuple(TASKS))
    ]


def check_request(message: str, example: dict[str, Any], envelopes: Sequence[EnvelopeFormat] = ()) -> None:
    """An example of a request fits its schema, and is decoded to what it says."""
    validate(message, example["payload"])
    payload = example["payload"]
    value = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
    headers = [(name, text.encode()) for name, text in example["headers"].items()]
    assert "content-type" in example["headers"]
    request = read(message, value, *headers, envelopes=envelopes)
    if not isinstance(payload, str):
        data = payload.get("data", payload)
        assert request.request_id == data["requestId"]
        as_json = read(message, json.dumps(data).encode(), ("content-type", b"application/json"))
        same = ParseDict(data, REQUESTS[topic_of(message)]()).SerializeToString()
        as_protobuf = read(message, same, ("content-type", b"application/x-protobuf"))
        assert [list(each.inputs) for each in (as_json, as_protobuf)] == [list(request.inputs)] * 2
