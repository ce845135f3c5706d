"""Write settled requests as replies, and records that failed as dead letters: the wire format of the way back."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.internal.type_checkers import ToShortestFloat
from google.protobuf.json_format import MessageToDict, MessageToJson

from aggregator.answer import response
from aggregator.core.watermark import Lease
from aggregator.errors import InvalidRequest, TokenbatchError
from aggregator.kafka_codec import Header, Refused, ReplyRoute
from aggregator.ports import OutgoingRecord, Record
from aggregator.request import Options, Request
from aggregator.vectors import CompletedBatch, Vector, vector_bytes
from protos.embedding.v1 import embedding_pb2 as pb

_ENVELOPE_BYTES = 1024
"""Room for everything in a reply that does not grow with the request: ids, timings, revision, record framing."""
_FAILURE_BYTES = 256
_MAX_REFUSED_ID = 1024
_MAX_KEPT_HEADERS_BYTES = 32 * 1024


def reply_id(topic: str, partition: int, offset: int, request_id: str) -> str:
    """The same for every delivery of the same record; 32 hexadecimal digits."""
    return hashlib.blake2b(f"{topic}\0{partition}\0{offset}\0{request_id}".encode(), digest_size=16).hexdigest()


def encode_replies(requests: Sequence[Request]) -> list[OutgoingRecord]:
    """The reply to each settled request, in its format, to its route, under its key.

    Equal to `answer.response` in every field. A request of one input that has its vector, which is nearly every
    one, costs 40 % of that: what it shares with its batch is built once.
    """
    shared: dict[tuple[int, int], _Shared] = {}
    replies: list[OutgoingRecord] = []
    for request in requests:
        route: ReplyRoute = request.origin
        record: Record = route.lease.record
        identity = reply_id(record.topic, record.partition, record.offset, request.request_id)
        outcome = request.outcomes[0]
        if len(request.outcomes) == 1 and isinstance(outcome, Vector):
            key = (id(outcome.batch), id(request.options))
            parts = shared.get(key)
            if parts is None:
                parts = shared[key] = _Shared(outcome.batch, request.options)
            value = (parts.json if route.json else parts.protobuf)(request.request_id, outcome, identity)
        else:
            value = _serialize(response(request, identity), as_json=route.json)
        replies.append(OutgoingRecord(route.topic, route.partition, record.key, value, route.headers))
    return replies


def encode_refusal(refused: Refused) -> OutgoingRecord:
    """The reply to a record that did not become a request; it must have a route."""
    route = refused.route
    assert route is not None, "A record without a route was to be answered. This is a bug."
    record: Record = route.lease.record
    error = refused.error
    answer = pb.EmbedResponse(
        request_id=refused.request_id[:_MAX_REFUSED_ID],
        status=pb.Status(code=error.code, message=str(error), retryable=error.retriable),
        reply_id=reply_id(record.topic, record.partition, record.offset, refused.request_id),
    )
    value = _serialize(answer, as_json=route.json)
    return OutgoingRecord(route.topic, route.partition, record.key, value, route.headers)


def check_reply_fits(request: Request, dimensions: int, max_reply_bytes: int) -> None:
    """Refuse a request whose reply could be larger than `max_reply_bytes`; `dimensions` are its model's.

    Raises InvalidRequest.
    """
    route: ReplyRoute = request.origin
    count = len(request.inputs)
    each = max(vector_bytes(request.options.dimensions or dimensions, request.options.encoding) + 48, _FAILURE_BYTES)
    if route.json:
        each = each * 4 // 3 + 160
    echoed = len(route.lease.record.key or b"")
    for name, value in route.headers:
        echoed += len(name) + len(value or b"") + 8
    most = _ENVELOPE_BYTES + 3 * len(request.request_id) + echoed + count * each
    if most > max_reply_bytes:
        raise InvalidRequest(
            f"the reply to {count} inputs could have {most} bytes: at most {max_reply_bytes} are sent;"
            " ask for fewer inputs, fewer dimensions or a smaller encoding"
        )


def dead_letter(
    lease: Lease,
    error: TokenbatchError,
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
    record: Record = lease.record
    value, key = record.value or b"", record.key
    added = {
        "dlt-original-topic": record.topic,
        "dlt-original-partition": record.partition,
        "dlt-original-offset": record.offset,
        "dlt-original-timestamp": record.timestamp,
        "dlt-original-consumer-group": group_id,
        "dlt-error-code": error.code.name,
        "dlt-error-message": str(error),
        "dlt-attempts": attempts,
        "dlt-first-failure-time": datetime.fromtimestamp(first_failure_unix_s, UTC).isoformat(timespec="milliseconds"),
    }
    kept = [header for header in record.headers if header[0] not in added]
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


class _Shared:
    """What the replies to one batch have in common, for requests of one input with the same options."""

    def __init__(self, batch: CompletedBatch, options: Options) -> None:
        self._rows = batch.rows(options.dimensions, options.encoding, normalize=bool(options.normalize))
        common = pb.EmbedResponse(
            model=batch.model, model_revision=batch.model_revision, batch_id=batch.batch_id, attempt=batch.attempt
        )
        common.timings.batched.FromNanoseconds(int(batch.batched_s * 1e9))
        common.timings.inference.FromNanoseconds(int(batch.inference_s * 1e9))
        # Protobuf merges messages that stand end to end, so this one goes in front of each reply's own part.
        self._common = common.SerializeToString()
        self._common_json: dict[str, Any] = MessageToDict(common)
        self._own = own = pb.EmbedResponse()
        self._embedding = own.embeddings.add(dimensions=self._rows.dimensions, encoding=options.encoding)
        self._embedding.status.SetInParent()
        self._embedding_json: dict[str, Any] = MessageToDict(self._embedding)
        self._queued = own.timings.queued

    def protobuf(self, request_id: str, vector: Vector, reply_id: str) -> bytes:
        """One reply as protobuf."""
        return self._common + self._fill(request_id, vector, reply_id).SerializeToString()

    def json(self, request_id: str, vector: Vector, reply_id: str) -> bytes:
        """One reply as JSON."""
        self._queued.seconds, self._queued.nanos = _seconds_nanos(vector.queued_s)
        common = self._common_json
        embedding = {"embedding": b64encode(self._rows.row(vector.row)).decode(), **self._embedding_json}
        if vector.token_count:
            embedding["tokenCount"] = vector.token_count
        if scale := self._rows.scale(vector.row):
            embedding["scale"] = ToShortestFloat(scale)
        timings = {"queued": self._queued.ToJsonString(), **common["timings"]}
        own = {"requestId": request_id, "embeddings": [embedding], "timings": timings, "replyId": reply_id}
        return json.dumps(common | own, ensure_ascii=False, separators=(",", ":")).encode()

    def _fill(self, request_id: str, vector: Vector, reply_id: str) -> pb.EmbedResponse:
        own, embedding, queued = self._own, self._embedding, self._queued
        own.request_id = request_id
        own.reply_id = reply_id
        embedding.embedding = self._rows.row(vector.row)
        embedding.token_count = vector.token_count
        embedding.scale = self._rows.scale(vector.row)
        queued.seconds, queued.nanos = _seconds_nanos(vector.queued_s)
        return own


def _seconds_nanos(duration_s: float) -> tuple[int, int]:
    return divmod(int(duration_s * 1e9), 1_000_000_000)


def _serialize(answer: pb.EmbedResponse, *, as_json: bool) -> bytes:
    if as_json:
        return MessageToJson(answer, indent=None, ensure_ascii=False).encode()
    return answer.SerializeToString()
