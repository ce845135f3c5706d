"""Write settled requests as replies, and records that failed as dead letters: the wire format of the way back."""

from __future__ import annotations

import hashlib
import json
import logging
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from google.protobuf.json_format import MessageToDict, MessageToJson

from aggregator.answer import fill_status, response
from aggregator.core.watermark import Lease
from aggregator.errors import Code, InvalidRequest
from aggregator.kafka_codec import Header, Refused, ReplyRoute
from aggregator.ports import OutgoingRecord, Record
from aggregator.request import Failure, Options, Request
from aggregator.vectors import CompletedBatch, Vector, vector_bytes
from protos.embedding.v1 import embedding_pb2 as pb

_LOG = logging.getLogger(__name__)

_ENVELOPE_BYTES = 1024
"""Room for everything in a reply that does not grow with the request: ids, timings, revision, record framing."""
_FAILURE_BYTES = 256
_REPLY_ID_LENGTH = 32
_UNENCODABLE = Failure(Code.INTERNAL, "the reply could not be encoded")
_MAX_REFUSED_ID = 1024
_MAX_KEPT_HEADERS_BYTES = 32 * 1024


def reply_id(topic: str, partition: int, offset: int, request_id: str) -> str:
    """The same for every delivery of the same record; 32 hexadecimal digits."""
    told = f"{topic}\0{partition}\0{offset}\0{request_id}".encode()
    return hashlib.blake2b(told, digest_size=_REPLY_ID_LENGTH // 2).hexdigest()


def encode_replies(requests: Sequence[Request]) -> list[OutgoingRecord]:
    """The reply to each settled request, in its format, to its route, under its key.

    Equal to `answer.response` in every field. A request of one input that has its vector, which is nearly every
    one, costs a third of that: what it shares with its batch is built once.
    """
    shared: dict[tuple[int, int], _Shared] = {}
    replies: list[OutgoingRecord] = []
    for request in requests:
        route: ReplyRoute = request.origin
        record: Record = route.lease.record
        identity = reply_id(record.topic, record.partition, record.offset, request.request_id)
        try:
            outcome = request.outcomes[0]
            if len(request.outcomes) == 1 and isinstance(outcome, Vector):
                key = (id(outcome.batch), id(request.options))
                parts = shared.get(key)
                if parts is None:
                    parts = shared[key] = _Shared(outcome.batch, request.options)
                value = (parts.json if route.json else parts.protobuf)(request.request_id, outcome, identity)
            else:
                value = _serialize(response(request, identity), as_json=route.json)
        except Exception:  # noqa: BLE001 - one reply that nobody thought of must not stop all others
            _LOG.exception("a reply could not be encoded")
            value = _serialize(_failed(request.request_id, _UNENCODABLE, identity), as_json=route.json)
        replies.append(OutgoingRecord(route.topic, route.partition, record.key, value, route.headers))
    return replies


def encode_refusal(refused: Refused) -> OutgoingRecord:
    """The reply to a record that did not become a request; it must have a route."""
    route = refused.route
    assert route is not None, "A record without a route was to be answered. This is a bug."
    record: Record = route.lease.record
    identity = reply_id(record.topic, record.partition, record.offset, refused.request_id)
    answer = _failed(refused.request_id[:_MAX_REFUSED_ID], Failure.of(refused.error), identity)
    value = _serialize(answer, as_json=route.json)
    return OutgoingRecord(route.topic, route.partition, record.key, value, route.headers)


def _failed(request_id: str, failure: Failure, reply_id: str) -> pb.EmbedResponse:
    answer = pb.EmbedResponse(request_id=request_id, reply_id=reply_id)
    fill_status(answer.status, failure)
    return answer


def check_reply_fits(request: Request, dimensions: int, max_reply_bytes: int) -> None:
    """Refuse a request whose reply could be larger than `max_reply_bytes`; `dimensions` are its model's.

    Raises InvalidRequest.
    """
    route: ReplyRoute = request.origin
    count = len(request.inputs)
    each = _most_bytes_each(request.options.dimensions or dimensions, request.options.encoding, route.json)
    echoed = len(route.lease.record.key or b"")
    for name, value in route.headers:
        echoed += len(name) + len(value or b"") + 8
    most = _ENVELOPE_BYTES + 3 * len(request.request_id) + echoed + count * each
    if most > max_reply_bytes:
        raise InvalidRequest(
            f"the reply to {count} inputs could have {most} bytes: at most {max_reply_bytes} are sent;"
            " ask for fewer inputs, fewer dimensions or a smaller encoding"
        )


@lru_cache(maxsize=256)
def _most_bytes_each(dimensions: int, encoding: int, as_json: bool) -> int:  # noqa: FBT001 - quicker by position
    each = max(vector_bytes(dimensions, encoding) + 48, _FAILURE_BYTES)
    return each * 4 // 3 + 160 if as_json else each


def dead_letter(
    lease: Lease,
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
    record: Record = lease.record
    value, key = record.value or b"", record.key
    added = {
        "dlt-original-topic": record.topic,
        "dlt-original-partition": record.partition,
        "dlt-original-offset": record.offset,
        "dlt-original-timestamp": record.timestamp,
        "dlt-original-consumer-group": group_id,
        "dlt-error-code": code.name,
        "dlt-error-message": message,
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
    """What the replies to one batch have in common, for requests of one input with the same options.

    A protobuf reply is put together from pieces that protobuf wrote: it merges messages that stand end to end, so
    what replies share is written once, and only ids and the vector's own bytes go in between.
    """

    def __init__(self, batch: CompletedBatch, options: Options) -> None:
        self._rows = batch.rows(options.dimensions, options.encoding, normalize=bool(options.normalize))
        self._encoding = options.encoding
        common = pb.EmbedResponse(
            model=batch.model, model_revision=batch.model_revision, batch_id=batch.batch_id, attempt=batch.attempt
        )
        common.timings.batched.FromNanoseconds(int(batch.batched_s * 1e9))
        common.timings.inference.FromNanoseconds(int(batch.inference_s * 1e9))
        self._common = common.SerializeToString()
        self._common_json: dict[str, Any] = MessageToDict(common)
        self._with_timings: dict[float, bytes] = {}

    def protobuf(self, request_id: str, vector: Vector, reply_id: str) -> bytes:
        """One reply as protobuf."""
        common = self._with_timings.get(vector.queued_s) or self._add_timings(vector.queued_s)
        rows = self._rows
        scale = rows.scale(vector.row)
        before, after = _around_vector(rows.row_bytes, rows.dimensions, self._encoding, vector.token_count, scale)
        own_id = request_id.encode()
        before_id = _before_request_id(len(own_id))
        own = rows.row(vector.row)
        return b"".join((common, before, own, after, before_id, own_id, _BEFORE_REPLY_ID, reply_id.encode()))

    def json(self, request_id: str, vector: Vector, reply_id: str) -> bytes:
        """One reply as JSON."""
        own = pb.EmbedResponse(request_id=request_id, reply_id=reply_id)
        rows = self._rows
        scale = rows.scale(vector.row)
        own.embeddings.append(_embedding(b"", rows.dimensions, self._encoding, vector.token_count, scale))
        own.timings.queued.FromNanoseconds(int(vector.queued_s * 1e9))
        document: dict[str, Any] = self._common_json | MessageToDict(own)
        document["timings"] |= self._common_json["timings"]
        document["embeddings"][0]["embedding"] = b64encode(self._rows.row(vector.row)).decode()
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

    def _add_timings(self, queued_s: float) -> bytes:
        own = pb.EmbedResponse()
        own.timings.queued.FromNanoseconds(int(queued_s * 1e9))
        whole = self._with_timings[queued_s] = self._common + own.SerializeToString()
        return whole


def _embedding(vector: bytes, dimensions: int, encoding: int, token_count: int, scale: float) -> pb.Embedding:
    embedding = pb.Embedding(
        embedding=vector,
        dimensions=dimensions,
        encoding=encoding,  # type: ignore[arg-type]
        token_count=token_count,
        scale=scale,
    )
    embedding.status.SetInParent()
    return embedding


@lru_cache(maxsize=1024)
def _around_vector(
    row_bytes: int, dimensions: int, encoding: int, token_count: int, scale: float
) -> tuple[bytes, bytes]:
    """What stands before and after a vector's bytes in a reply."""
    vector = b"\xff" * row_bytes
    reply = pb.EmbedResponse(embeddings=[_embedding(vector, dimensions, encoding, token_count, scale)])
    before, _, after = reply.SerializeToString().partition(vector)
    return before, after


@lru_cache(maxsize=256)
def _before_request_id(size_bytes: int) -> bytes:
    """What stands before a request id of so many bytes."""
    return pb.EmbedResponse(request_id="x" * size_bytes).SerializeToString()[: -size_bytes or None]


_BEFORE_REPLY_ID = pb.EmbedResponse(reply_id="x" * _REPLY_ID_LENGTH).SerializeToString()[:-_REPLY_ID_LENGTH]


def _serialize(answer: pb.EmbedResponse, *, as_json: bool) -> bytes:
    if as_json:
        return MessageToJson(answer, indent=None, ensure_ascii=False).encode()
    return answer.SerializeToString()
