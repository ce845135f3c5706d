"""Decode Kafka records to requests, and their headers to the route of the reply: the wire format of query topics."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, Final

from aggregator.errors import InvalidRequest, NeverFits, NotPermitted, RequestError, Undecodable
from aggregator.request.kind import Kind, kind_named
from aggregator.request.request import Defaults, Request, Source
from aggregator.settings.aggregator import KafkaSettings
from aggregator.slow_lane import in_slow_lane
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.kafka.envelope import Envelope, EnvelopeFormat
from aggregator.sources.kafka.offsets import Fetched, Header, InFlightRecord
from aggregator.sources.wire.message import parse
from aggregator.sources.wire.turns import slices
from aggregator.sources.wire.values import (
    JSON,
    MAX_BYTES,
    PROTOBUF,
    bounded,
    content_type_of,
    defaults_of,
    message_of,
    permitted,
)

_LOG = logging.getLogger(__name__)

REDRIVES = "dlt-redrives"
"""The header that a dead letter is put back with: how often that was done."""
ECHOED: Final = frozenset(
    {"kafka_replyTopic", "kafka_replyPartition", "kafka_correlationId", "reply_to", "correlation_id"}
    | {"traceparent", "tracestate"}
)
"""Headers that are copied to the reply."""

READ: Final = frozenset(
    {"content-type", "kafka_replyTopic", "kafka_replyPartition", "reply_to", "traceparent", REDRIVES}
    | {"ce_id", "ce_expirytime"}
)
"""Headers whose values are looked at, beside those of envelopes."""
_PLAIN_REPLY: Final[list[Header]] = [("content-type", PROTOBUF)]
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_REPLY_ID_LENGTH = 32  # 128 bits in hexadecimal


@dataclass(slots=True, eq=False)  # not frozen: that takes four times as long to make
class ReplyRoute:
    """Where and how to reply: `headers` are the reply's, its content type, then the routing and trace headers.

    Records without headers share their topic's. `envelope`: the request's, if it had one; the reply has one then.
    """

    topic: str
    partition: int | None
    json: bool
    headers: Sequence[Header]
    envelope: Envelope | None = None


@dataclass(slots=True, eq=False)
class RecordOrigin:
    """The record that a request came in, and where its reply goes."""

    in_flight: InFlightRecord
    route: ReplyRoute


@dataclass(frozen=True, slots=True)
class TopicIntake:
    """How the records of one query topic are read; `route` is that of the reply to a record without headers."""

    defaults: Defaults
    route: ReplyRoute
    permits: Callable[[str], bool]
    max_record_bytes: int = MAX_BYTES
    kind: Kind = EMBEDDING
    envelopes: Sequence[EnvelopeFormat] = ()
    read: frozenset[str] = READ


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that did not become a request, and how to answer its sender.

    Without a `route` it gets no reply. `dead_letter`: it could not be routed or decoded, so the record
    itself is kept too.
    """

    in_flight: InFlightRecord
    error: RequestError
    request_id: str
    route: ReplyRoute | None
    dead_letter: bool
    kind: Kind = EMBEDDING


def refused_for_room(request: Request, needed_bytes: int, largest_bytes: int) -> Refused:
    """The refusal of a request that could never be held with its answer."""
    origin = origin_of(request)
    error = NeverFits(needed_bytes, largest_bytes)
    return Refused(origin.in_flight, error, request.request_id, origin.route, dead_letter=False, kind=request.kind)


def origin_of(request: Request) -> RecordOrigin:
    return request.origin  # type: ignore[return-value]  # a call of `cast` takes as long as all of this


def record_of(request: Request) -> InFlightRecord:
    return request.origin.in_flight  # type: ignore[attr-defined,no-any-return]


def reply_id(in_flight: InFlightRecord, request_id: str, group_id: str) -> str:
    """The same for every delivery of the same record to the same group; 32 hexadecimal digits.

    The topic's id tells records apart that had one offset in topics of one name, one after another; where the broker
    has no ids (before Kafka 2.8), only their timestamps do.
    """
    source = in_flight.committed_offset
    place = f"{source.topic}\0{source.partition}\0{in_flight.offset}\0{in_flight.timestamp}\0{source.topic_id}"
    identity = f"{group_id}\0{place}\0{request_id}".encode()
    return hashlib.blake2b(identity, digest_size=_REPLY_ID_LENGTH // 2).hexdigest()


def intakes(
    settings: KafkaSettings,
    source: Source,
    default_model: str,
    *,
    kinds: Sequence[Kind] = (EMBEDDING,),
    trusts_tenant: bool = True,
    envelopes: Sequence[EnvelopeFormat] = (),
) -> Mapping[str, TopicIntake]:
    """How `source` reads each query topic; `default_model` is for topics that name none.

    `kinds`: of this aggregator. `trusts_tenant`: a request may name its tenant where its topic has none. `envelopes`:
    the formats that are known. Raises StartError.
    """
    permits = permitted(
        {settings.reply_topic, *settings.reply_topics},
        [topic.name for topic in settings.topics],
        settings.allowed_reply_topics,
    )
    return {
        topic.name: TopicIntake(
            defaults_of(topic, source, default_model, trusts_tenant=trusts_tenant),
            ReplyRoute(settings.replies_of(topic), None, json=False, headers=_PLAIN_REPLY),
            permits,
            envelopes=envelopes,
            read=READ.union(*(each.headers for each in envelopes)),
            kind=kind_named(topic.task, kinds),
        )
        for topic in settings.topics
    }


async def decode_all(
    in_flight_records: Sequence[InFlightRecord], intakes: Mapping[str, TopicIntake], *, received_s: float, wall_s: float
) -> tuple[list[Request], list[Refused]]:
    """Decode small records in their order, each by its topic's intake; an undecodable record affects no other.

    The event loop runs between slices of them.
    `wall_s` is the wall clock (Unix seconds) at `received_s` (monotonic).
    """
    decoded: list[Request | Refused] = []
    for some in slices(in_flight_records, lambda each: len(each.value or b"")):
        if decoded:
            await asyncio.sleep(0)
        decoded += [_decode_any(each, intakes, received_s, wall_s) for each in some]
    return _split(decoded)


async def decode_large(
    fetched: Sequence[Fetched], intakes: Mapping[str, TopicIntake]
) -> tuple[list[Request], list[Refused]]:
    def work() -> list[Request | Refused]:
        return [_decode_any(each.in_flight, intakes, each.received_s, each.wall_s) for each in fetched]

    return _split(await in_slow_lane(work))


def _split(decoded: Sequence[Request | Refused]) -> tuple[list[Request], list[Refused]]:
    requests = [each for each in decoded if not isinstance(each, Refused)]
    return requests, [each for each in decoded if isinstance(each, Refused)]


def _decode_any(
    in_flight: InFlightRecord, intakes: Mapping[str, TopicIntake], received_s: float, wall_s: float
) -> Request | Refused:
    if in_flight.unreadable:
        return Refused(in_flight, Undecodable(in_flight.unreadable), "", None, dead_letter=True)
    try:
        return decode_record(in_flight, intakes[in_flight.committed_offset.topic], received_s=received_s, wall_s=wall_s)
    except Exception as error:  # noqa: BLE001 - one record must not stop all others, on every replay again
        place = {"topic": in_flight.topic, "partition": in_flight.partition, "offset": in_flight.offset}
        # Its traceback stays out of the log, as it may quote the text.
        _LOG.error("cannot decode a record", extra={**place, "error": type(error).__name__})
        return Refused(in_flight, Undecodable("the record cannot be read"), "", None, dead_letter=True)


def decode_record(
    in_flight: InFlightRecord, intake: TopicIntake, *, received_s: float, wall_s: float
) -> Request | Refused:
    """Decode a record and the route of its reply; a request without an id gets one, the same in a replay."""
    content_type, value = PROTOBUF, in_flight.value
    limits = intake.max_record_bytes, intake.defaults.max_inputs
    given_id = ""
    found: dict[str, bytes] = {}
    message: Any = None
    route: ReplyRoute | None = None
    try:
        if in_flight.headers:
            found = {name: value for name, value in in_flight.headers if name in intake.read}
            route = _route(in_flight.headers, intake, found)
            if route.envelope is not None and route.envelope.holds_value:
                value, attributes, route.envelope = route.envelope.opened(bounded(value, limits[0]), limits[1])
                found |= attributes
            content_type = content_type_of(_text(found, "content-type"))
            if content_type is not PROTOBUF:
                _reply_in_json(route)
            given_id = _text(found, "ce_id")
        else:
            route = intake.route
        message = message_of(value, content_type, *limits, kind=intake.kind)
        if not message.request_id:
            message.request_id = given_id or _place_of(in_flight)
        deadline_s = _deadline_s(found, received_s - wall_s) if found else inf
        request = parse(
            intake.kind,
            message,
            intake.defaults,
            RecordOrigin(in_flight, route),
            received_s=received_s,
            wall_s=wall_s,
            deadline_s=deadline_s,
            traceparent=found.get("traceparent"),
        )
        request.redriven = REDRIVES in found
        if in_flight.replay:
            _answer_as_before(request, in_flight, received_s)
        return request
    except RequestError as error:
        request_id = message.request_id if message is not None else given_id or _place_of(in_flight)
        unread = route is None or message is None
        return Refused(in_flight, error, request_id, route, dead_letter=unread, kind=intake.kind)


def _place_of(in_flight: InFlightRecord) -> str:
    return f"{in_flight.topic}-{in_flight.partition}-{in_flight.offset}"


def _answer_as_before(request: Request, in_flight: InFlightRecord, received_s: float) -> None:
    """Let a record that may have been answered expire only if it did, and go to the revision that answered it."""
    before, offset = in_flight.committed_offset.answered_before, in_flight.offset
    request.replay = True
    request.replay_revision = before.model_revision(offset, request.model)
    request.deadline_s = min(request.deadline_s, received_s) if before.expired(offset) else inf
    request.kind.replayed(request)


def _route(headers: Sequence[Header], intake: TopicIntake, found: Mapping[str, bytes]) -> ReplyRoute:
    name = "kafka_replyTopic" if "kafka_replyTopic" in found else "reply_to"
    topic = _text(found, name) or intake.route.topic
    if not _LEGAL_TOPIC.fullmatch(topic):
        raise InvalidRequest(f"header {name} is not the name of a topic")
    if not intake.permits(topic):
        raise NotPermitted(f"replies to {topic} are not permitted; allowed_reply_topics lists those that are")
    partition: int | None = None
    packed = found.get("kafka_replyPartition")
    if packed:
        is_int32 = len(packed) == 4  # noqa: PLR2004 - bytes
        partition = struct.unpack(">i", packed)[0] if is_int32 else -1
        if partition < 0:
            raise InvalidRequest("header kafka_replyPartition is not a partition: 4 bytes, big endian")
    echoed = [each for each in headers if each[0] in ECHOED]
    route = ReplyRoute(topic, partition, json=False, headers=[*_PLAIN_REPLY, *echoed])
    for envelopes in intake.envelopes:
        route.envelope = route.envelope or envelopes.of(found)
    if route.envelope is not None and route.envelope.holds_value:
        _reply_in_json(route)
    return route


def _reply_in_json(route: ReplyRoute) -> None:
    """Let the reply be JSON. The route is the record's own, as it has headers."""
    route.json, route.headers = True, [("content-type", JSON), *route.headers[1:]]


def _text(found: Mapping[str, bytes], name: str) -> str:
    try:
        return (found.get(name) or b"").decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"header {name} is not UTF-8") from None


def _deadline_s(found: Mapping[str, bytes], monotonic_minus_wall_s: float) -> float:
    given = _text(found, "ce_expirytime")
    if not given:
        return inf
    try:
        expire_s = datetime.fromisoformat(given.upper()).timestamp() if _RFC3339.fullmatch(given) else None
    except (ValueError, OverflowError):
        expire_s = None
    if expire_s is None:
        raise InvalidRequest("header ce_expirytime is not an RFC 3339 time")
    return expire_s + monotonic_minus_wall_s
