"""Encode completed requests as replies, and failed records as dead letters: the wire format of what is produced."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

from aggregator.errors import Code, InvalidRequest
from aggregator.replicas.results import vector_bytes
from aggregator.replicas.texts.text import Text
from aggregator.request import Failure, Request
from aggregator.sources import generation as texts
from aggregator.sources.kafka.codec import Refused, record_of
from aggregator.sources.kafka.consumer.committed_offset import InFlightRecord
from aggregator.sources.kafka.records import Header, OutgoingRecord
from aggregator.sources.response import MAX_ECHOED, fill_status, json_of, to_json, to_protobuf
from protos.embedding.v1 import embedding_pb2 as pb
from protos.generation.v1.generation_pb2 import GenerateResponse

_LOG = logging.getLogger(__name__)

Answer = pb.EmbedResponse | GenerateResponse

_ENVELOPE_BYTES = 1024
"""For everything in a reply that does not grow with the request: ids, timings, revision, record framing."""
_FAILURE_BYTES = 256
_TOKEN_BYTES, _ID_BYTES, _LOGPROB_BYTES = 8, 5, 32
"""Of a generated token: its characters, usually; its id; and one alternative in its logprobs, at most."""
_REPLY_ID_LENGTH = 32
_UNENCODABLE = Failure(Code.INTERNAL, "the reply could not be encoded")
_MAX_KEPT_HEADERS_BYTES = 32 * 1024


def reply_id(in_flight: InFlightRecord, request_id: str, group_id: str) -> str:
    """The same for every delivery of the same record to the same group; 32 hexadecimal digits."""
    source = in_flight.committed_offset
    place = f"{source.topic}\0{source.topic_id}\0{source.partition}\0{in_flight.offset}"
    told = f"{group_id}\0{place}\0{request_id}".encode()
    return hashlib.blake2b(told, digest_size=_REPLY_ID_LENGTH // 2).hexdigest()


def encode_replies(requests: Sequence[Request], group_id: str, now_s: float = 0.0) -> list[OutgoingRecord]:
    """The reply of a consumer group to each completed request, in its format, to its route, under its key.

    `now_s`: when the texts among them were complete.
    """
    replies: list[OutgoingRecord] = []
    for request in requests:
        record = record_of(request)
        route = record.route
        identity = reply_id(record, request.request_id, group_id)
        try:
            value = _value(request, identity, now_s, as_json=route.json)
        except Exception:  # noqa: BLE001 - one reply that nobody thought of must not stop all others
            _LOG.exception("a reply could not be encoded")
            failed = _failed(request.request_id, _UNENCODABLE, identity, generates=request.text is not None)
            value = _serialize(failed, as_json=route.json)
        replies.append(OutgoingRecord(route.topic, route.partition, record.key, value, route.headers))
    return replies


def encode_refusal(refused: Refused, group_id: str) -> OutgoingRecord:
    """The reply to a record that did not become a request; it must have a route."""
    route = refused.route
    assert route is not None, "A record without a route was to be answered. This is a bug."
    record = refused.in_flight
    identity = reply_id(record, refused.request_id, group_id)
    failure = Failure.of(refused.error)
    answer = _failed(refused.request_id[:MAX_ECHOED], failure, identity, generates=refused.generates)
    value = _serialize(answer, as_json=route.json)
    return OutgoingRecord(route.topic, route.partition, record.key, value, route.headers)


def _value(request: Request, reply_id: str, now_s: float, *, as_json: bool) -> bytes:
    if request.text is not None:
        return (texts.to_json if as_json else texts.to_protobuf)(request, reply_id, now_s)
    return (to_json if as_json else to_protobuf)(request, reply_id)


def _failed(request_id: str, failure: Failure, reply_id: str, *, generates: bool) -> Answer:
    if generates:
        return texts.refusal(request_id, "", failure, reply_id)
    answer = pb.EmbedResponse(request_id=request_id, reply_id=reply_id)
    fill_status(answer.status, failure)
    return answer


def check_reply_fits(request: Request, dimensions: int, max_reply_bytes: int) -> None:
    """Refuse a request whose reply could be larger than `max_reply_bytes`; `dimensions` are its model's.

    Raises InvalidRequest.
    """
    record = record_of(request)
    route = record.route
    if request.text is not None:
        _check_text_fits(request.text, max_reply_bytes)
        return
    count = len(request.inputs)
    each = _most_bytes_each(request.options.dimensions or dimensions, request.options.encoding, route.json)
    echoed = len(record.key or b"")
    for name, value in route.headers:
        echoed += len(name) + len(value or b"") + 8
    request_id = (6 if route.json else 4) * len(request.request_id)  # "\\u0001" in JSON, a letter of UTF-8
    most = _ENVELOPE_BYTES + request_id + echoed + count * each
    if most > max_reply_bytes:
        raise InvalidRequest(
            f"the reply to {count} inputs could have {most} bytes: at most {max_reply_bytes} are sent;"
            " ask for fewer inputs, fewer dimensions or a smaller encoding"
        )


def _check_text_fits(text: Text, max_reply_bytes: int) -> None:
    sampling = text.sampling
    each = _TOKEN_BYTES + _ID_BYTES * text.include_token_ids
    if sampling.HasField("logprobs"):
        each += _LOGPROB_BYTES * (sampling.logprobs + 1)
    most = _ENVELOPE_BYTES + sampling.max_tokens * each
    if most > max_reply_bytes:
        raise InvalidRequest(
            f"the reply of {sampling.max_tokens} tokens could have {most} bytes: at most {max_reply_bytes} are sent;"
            " ask for fewer tokens or fewer logprobs"
        )


@lru_cache(maxsize=256)
def _most_bytes_each(dimensions: int, encoding: int, as_json: bool) -> int:  # noqa: FBT001 - quicker by position
    each = max(vector_bytes(dimensions, encoding) + 48, _FAILURE_BYTES)
    return each * 4 // 3 + 160 if as_json else each


def dead_letter(
    in_flight: InFlightRecord,
    code: Code,
    message: str,
    *,
    topic: str,
    group_id: str,
    attempts: int,
    first_failure_unix_s: float,
    omit_value: bool = False,
) -> OutgoingRecord:
    """The record as it was read, with the reason in its headers; `topic` is the dead-letter topic.

    `omit_value`: for a record too large for that topic; its size and SHA-256 go instead of its value, and key and
    headers only if they are small.
    """
    value, key = in_flight.value or b"", in_flight.key
    added = {
        "dlt-original-topic": in_flight.topic,
        "dlt-original-partition": in_flight.partition,
        "dlt-original-offset": in_flight.offset,
        "dlt-original-timestamp": in_flight.timestamp,
        "dlt-original-consumer-group": group_id,
        "dlt-error-code": code.name,
        "dlt-error-message": message,
        "dlt-attempts": attempts,
        "dlt-first-failure-time": datetime.fromtimestamp(first_failure_unix_s, UTC).isoformat(timespec="milliseconds"),
    }
    kept = [header for header in in_flight.headers if header[0] not in added]
    if omit_value:
        added["dlt-value-omitted"] = "true"
        added["dlt-value-size"] = len(value)
        added["dlt-value-sha256"] = hashlib.sha256(value).hexdigest()
        value = b""
        if len(key or b"") + sum(len(name) + len(content or b"") for name, content in kept) > _MAX_KEPT_HEADERS_BYTES:
            added["dlt-headers-omitted"] = "true"
            key, kept = None, []
    headers: list[Header] = [*kept, *((name, str(content).encode()) for name, content in added.items())]
    return OutgoingRecord(topic, None, key, value, headers)


def _serialize(answer: Answer, *, as_json: bool) -> bytes:
    return json_of(answer) if as_json else answer.SerializeToString()
