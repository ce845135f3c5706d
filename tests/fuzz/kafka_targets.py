"""Fuzz what comes from Kafka: record values in each format, their headers, and record batches read by hand."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from google.protobuf import json_format

from aggregator.errors import Code, RequestError
from aggregator.request import request as request_module
from aggregator.request.request import Failure, Request
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources import json_codec
from aggregator.sources.kafka import codec as kafka_codec
from aggregator.sources.kafka import faults as kafka_faults
from aggregator.sources.kafka import outcomes as kafka_outcomes
from aggregator.sources.kafka.codec import Refused, decode, intakes
from aggregator.sources.kafka.dead_letters import DeadLetter
from aggregator.sources.kafka.outcomes import check_reply_fits, encode_refusal, encode_replies
from protos.embedding.v1 import embedding_pb2 as pb
from tests.fuzz.target import Cut, Target, field
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of

_NOW_S = 1_700_000_000.0
_SETTINGS = KafkaSettings(allowed_reply_topics=("team-*",))
_TOPIC = intakes(_SETTINGS, KAFKA, "m")["embed.requests.v1"]
_INTAKE = replace(_TOPIC, defaults=replace(_TOPIC.defaults, max_inputs=8), max_record_bytes=3000)
_TEXT = "the text of a query"
_HEADERS = (
    *("content-type", "ce_id", "ce_expirytime", "kafka_replyTopic", "kafka_replyPartition", "reply_to"),
    *("kafka_correlationId", "traceparent", "dlt-error-code", "other"),
)
_FAILURE = Failure(Code.INTERNAL, "it broke")
_SOURCES = tuple(Path(module.__file__ or "") for module in (kafka_codec, json_codec, kafka_outcomes, request_module))


def _take(value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> Request | Refused:
    """Decode one record, and write every answer that may become of it."""
    in_flight = in_flight_of(value, headers)
    taken = decode(in_flight, _INTAKE, received_s=0.0, wall_s=_NOW_S)
    if isinstance(taken, Refused):
        assert isinstance(taken.error, RequestError), "A refusal has no code that its sender knows."
        if taken.route is not None:
            encode_refusal(taken, "g")
        message, code = str(taken.error), taken.error.code
    else:
        assert len(taken.inputs) == len(taken.outcomes) > 0, "A request has lost an input."
        assert taken.request_id, "A request has no id."
        with contextlib.suppress(RequestError):
            check_reply_fits(taken, 384, 900_000)
        taken.fail(_FAILURE)
        encode_replies([taken], "g")
        message, code = _FAILURE.message, _FAILURE.code
    for omits_value in (False, True):
        DeadLetter(in_flight, code, message, since_unix_s=_NOW_S, omits_value=omits_value).record("g")
    return taken


def check_protobuf(data: bytes) -> Request | Refused:
    """A value without headers is protobuf."""
    return _take(data, ())


def check_json(data: bytes) -> Request | Refused:
    """A value that says it is JSON; what is wrong with it is told without its content."""
    taken = _take(data, [("content-type", b"application/json")])
    assert not isinstance(taken, Refused) or _TEXT not in str(taken.error), "A refusal quotes the text of a query."
    return taken


def check_headers(data: bytes) -> Request | Refused:
    """Up to 15 headers, known ones and others, some of them null, then a value in whatever format they say."""
    cut = Cut(data)
    headers: list[Any] = [(_HEADERS[cut.byte() % len(_HEADERS)], cut.field() or None) for _ in range(cut.byte() % 16)]
    return _take(cut.rest() or None, headers)


def check_batch(data: bytes) -> None:
    """A record batch as a broker, or its disk, may hand it out."""
    for each in (data, _with_right_checksum(data)):
        _check_batch(each)


def _with_right_checksum(data: bytes) -> bytes:
    """As a producer that writes nonsense would send it."""
    end = 12 + int.from_bytes(data[8:12], "big", signed=True)
    checksum: int = calc_crc32c(data[21:end])
    return data[:17] + checksum.to_bytes(4, "big") + data[21:]


def _check_batch(data: bytes) -> None:
    found = kafka_faults.decode(data, TopicPartition("topic", 2), 5, aborted=[(7, 5)], log_end=1000, max_records=500)
    if found is None:
        return
    assert found.after > 5, "Reading would go back, or stand still."
    assert all(5 <= record.offset < found.after for record in found.records if not record.unreadable), (
        "A record was delivered again, or will be."
    )
    for record in found.records:
        _take(record.value, record.headers)


def _requests() -> list[pb.EmbedRequest]:
    whole = pb.EmbedRequest(
        request_id="q-1",
        model="m",
        model_revision="r",
        inputs=[pb.Input(text="who wrote it?"), pb.Input(token_ids=pb.TokenIds(ids=[101, 7, 2**31 - 1]))],
        input_type=pb.INPUT_TYPE_QUERY,
        priority=pb.PRIORITY_BACKGROUND,
        dimensions=64,
        encoding=pb.ENCODING_INT8,
        normalize=True,
        truncate=pb.TRUNCATE_END,
        tenant="t",
    )
    whole.expire_time.FromNanoseconds(int((_NOW_S + 30) * 1e9))
    return [pb.EmbedRequest(inputs=[pb.Input(text="a")]), pb.EmbedRequest(request_id="empty"), whole]


def _protobuf_seeds() -> Sequence[bytes]:
    return [*(request.SerializeToString() for request in _requests()), *_undecodable()]


def _undecodable() -> Sequence[bytes]:
    """Text that is not UTF-8, fields cut short, no wire type, groups that begin or end alone, groups in groups."""
    return [
        *(b"\x0a\x01\xff", b"\x22\x03\x0a\x01\xff", b"\x22\x7f\x0a", b"\x0a", b"\x0f", b"\x0b", b"\x0c"),
        *(b"\x0b" * 200 + b"\x0c" * 200, b"\x22\x04\x13\x13\x14\x14", b"\x18" + b"\xff" * 11),
    ]


def _json_seeds() -> Sequence[bytes]:
    odd = [
        b"{}",
        b"[]",
        b'{"requestId": "\\ud800"}',
        b'{"inputs": [{"text": 1}]}',
        b"[" * 2000,
        b'{"dimensions": 1e400}',
        b'{"inputs": [%s]}' % b",".join([b'{"text": "a"}'] * 200),
        b'{"inputs": [%s]}' % b",".join([b"{}"] * 900),
        b'{"inputs": [{"tokenIds": {"ids": [%s]}}]}' % b",".join([b"1"] * 1000),
        b'{"inputs": [{"token_ids": {"ids": [1, "2", 3.0, -4]}}]}',
        *(
            json.dumps(document).encode()
            for document in (
                *({"inputs": _TEXT}, {"inputs": [_TEXT]}, {"inputs": [{"text": [_TEXT]}]}, {_TEXT: 1}),
                *({"dimensions": _TEXT}, {"expireTime": _TEXT}, {"encoding": _TEXT}, {"inputs": [{_TEXT: _TEXT}]}),
                {"inputs": [{"tokenIds": {"ids": [_TEXT]}}]},
            )
        ),
    ]
    return [json_format.MessageToJson(request, indent=None).encode() for request in _requests()] + odd


def _with_headers(value: bytes, *headers: tuple[str, bytes]) -> bytes:
    packed = b"".join(bytes([_HEADERS.index(name)]) + field(content) for name, content in headers)
    return bytes([len(headers)]) + packed + value


def _header_seeds() -> Sequence[bytes]:
    text = ("content-type", b"text/plain; charset=utf-8")
    protobuf = _requests()[0].SerializeToString()
    return [
        _with_headers(b"who wrote it?", text, ("ce_expirytime", b"2023-11-14T22:13:30.5+01:00")),
        _with_headers(b"{}", ("content-type", b"application/json"), ("ce_id", b"c-1")),
        _with_headers(protobuf, ("kafka_replyTopic", b"team-a"), ("kafka_replyPartition", b"\0\0\0\1")),
        _with_headers(protobuf, ("reply_to", b"embed.requests.v1"), ("kafka_correlationId", b"\xff\0")),
        _with_headers(protobuf, ("content-type", b""), ("kafka_replyTopic", b"")),
        _with_headers(protobuf, ("traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")),
    ]


def _batch_seeds() -> Sequence[bytes]:
    seeds: list[bytes] = []
    for compression in range(5):
        builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, 0, 100_000)
        for offset in range(8):
            builder.append(offset, 1000 + offset, b"k", b"value", [("n", b"c"), ("none", None)])
        seeds.append(bytes(builder.build()).replace(b"none", b"n\xffne"))
    for producer_id in (7, 8):
        builder = DefaultRecordBatchBuilder(2, 0, 1, producer_id, 0, 0, 100_000)
        for offset in range(8):
            builder.append(offset, 1000 + offset, b"k", b"value", [("none", None)])
        seeds.append(bytes(builder.build()).replace(b"none", b"n\xffne"))
    return [*seeds, seeds[0][:70], seeds[0] + seeds[1]]


TARGETS = (
    Target("kafka_protobuf", check_protobuf, _protobuf_seeds, _SOURCES),
    Target("kafka_json", check_json, _json_seeds, _SOURCES),
    Target("kafka_headers", check_headers, _header_seeds, _SOURCES),
    Target("kafka_batch", check_batch, _batch_seeds, (Path(kafka_faults.__file__),)),
)
