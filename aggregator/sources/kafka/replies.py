"""Encode completed requests as replies, and failed records as dead letters: the wire format of produced records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from aggregator.errors import InvalidRequest
from aggregator.request.generated_text import GeneratedText
from aggregator.request.request import Failure, Request
from aggregator.request.vector import vector_bytes
from aggregator.sources.answers import encode, encode_failure
from aggregator.sources.kafka.codec import Refused, record_of
from aggregator.sources.kafka.committed_offset import InFlightRecord
from aggregator.sources.kafka.records import OutgoingRecord

_ENVELOPE_BYTES = 1024
"""For everything in a reply that does not grow with the request: ids, timings, revision, record framing."""
_FAILURE_BYTES = 256
_TOKEN_BYTES, _ID_BYTES, _LOGPROB_BYTES = 8, 5, 32
"""Of a generated token: its characters, usually; its id; and one alternative in its logprobs, at most."""
_REPLY_ID_LENGTH = 32


def reply_id(in_flight: InFlightRecord, request_id: str, group_id: str) -> str:
    """The same for every delivery of the same record to the same group; 32 hexadecimal digits.

    The timestamp tells records apart that had one offset in topics of one name, one after another.
    """
    source = in_flight.committed_offset
    place = f"{source.topic}\0{source.partition}\0{in_flight.offset}\0{in_flight.timestamp}"
    told = f"{group_id}\0{place}\0{request_id}".encode()
    return hashlib.blake2b(told, digest_size=_REPLY_ID_LENGTH // 2).hexdigest()


def encode_replies(requests: Sequence[Request], group_id: str, now_s: float = 0.0) -> list[OutgoingRecord]:
    """The reply of a consumer group to each completed request, in its format, to its route, under its key.

    `now_s`: when the generations among them were complete.
    """
    replies: list[OutgoingRecord] = []
    for request in requests:
        record = record_of(request)
        route = record.route
        identity = reply_id(record, request.request_id, group_id)
        value = encode(request, identity, now_s, as_json=route.json)
        replies.append(OutgoingRecord(route.topic, route.partition, record.key, value, route.headers))
    return replies


def encode_refusal(refused: Refused, group_id: str) -> OutgoingRecord:
    """The reply to a record that did not become a request; it must have a route."""
    route = refused.route
    assert route is not None, "A record without a route was to be answered. This is a bug."
    record = refused.in_flight
    identity = reply_id(record, refused.request_id, group_id)
    failure = Failure.of(refused.error)
    value = encode_failure(refused.request_id, failure, identity, generates=refused.generates, as_json=route.json)
    return OutgoingRecord(route.topic, route.partition, record.key, value, route.headers)


def check_reply_fits(request: Request, dimensions: int, max_reply_bytes: int) -> None:
    """Refuse a request whose reply could be larger than `max_reply_bytes`; `dimensions` are its model's.

    Raises InvalidRequest.
    """
    record = record_of(request)
    route = record.route
    if request.generation is not None:
        _check_generation_fits(request.generation, max_reply_bytes)
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


def _check_generation_fits(asked: GeneratedText, max_reply_bytes: int) -> None:
    sampling = asked.sampling
    each = _TOKEN_BYTES + _ID_BYTES * asked.include_token_ids
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
