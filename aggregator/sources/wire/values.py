"""What Kafka and Redis keep: values of requests by their content types, where replies may go, and their values."""

from __future__ import annotations

import fnmatch
import logging
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from aggregator.errors import Code, InvalidRequest, Undecodable
from aggregator.request.request import Defaults, Failure, Request, Source
from aggregator.scheduler.work_item import Priority
from aggregator.settings.redis import IntakeSettings
from aggregator.sources.wire import decode, generation
from aggregator.sources.wire.encode import MAX_ECHOED, fill_status, json_of, response, to_protobuf
from protos.embedding.v1 import embedding_pb2 as pb
from protos.generation.v1.generation_pb2 import GenerateRequest, GenerateResponse

_LOG = logging.getLogger(__name__)
_UNENCODABLE = Failure(Code.INTERNAL, "the reply could not be encoded")
_from_protobuf = pb.EmbedRequest.FromString

PROTOBUF: Final = b"application/x-protobuf"
JSON: Final = b"application/json"
DEAD_LETTER_SUFFIX = "-dlt"
"""Appended to the name of a query topic or a request stream."""
MAX_BYTES = 4 * 1024 * 1024
"""A larger value is refused before it is parsed, as a larger call is."""

_CONTENT_TYPES = {
    "application/x-protobuf": PROTOBUF,
    "application/protobuf": PROTOBUF,
    "application/vnd.google.protobuf": PROTOBUF,
    "application/json": JSON,
    "text/plain": b"text/plain",
}


def content_type_of(given: str) -> bytes:
    """The content type that a sender gives, by its usual name; protobuf if it gives none. Raises Undecodable."""
    if not given:
        return PROTOBUF
    name, _, parameters = given.lower().partition(";")
    content_type = _CONTENT_TYPES.get(name.strip())
    charset = parameters.partition("charset=")[2].strip(' "')
    if content_type is None or charset not in {"", "utf-8", "utf8", "us-ascii"}:
        raise Undecodable(f"content-type is not known: use {', '.join(_CONTENT_TYPES)}")
    return content_type


def defaults_of(place: IntakeSettings, source: Source, default_model: str, *, trusts_tenant: bool) -> Defaults:
    """What requests of a place get that say nothing themselves. Where it has a tenant, they may name none."""
    model, priority = place.model or default_model, Priority[place.priority.upper()]
    return Defaults(source, model, priority, place.tenant, trusts_tenant=trusts_tenant and not place.tenant)


def permitted(
    replies: Collection[str], inputs: Collection[str], allowed: Sequence[str], prefix: str = ""
) -> Callable[[str], bool]:
    """Whether a request may name a place for its reply: one of `replies`, or one that an `allowed` pattern matches.

    It is never where requests or dead letters are, neither by its name nor by that with `prefix` before it.
    """
    pattern = re.compile("|".join(map(fnmatch.translate, allowed))) if allowed else None
    own = {*inputs, *(name + DEAD_LETTER_SUFFIX for name in inputs)}
    never = own | {prefix + name for name in own}

    @lru_cache(maxsize=4096)
    def permits(name: str) -> bool:
        return name not in never and (name in replies or (pattern is not None and bool(pattern.match(name))))

    return permits


def message_of(
    value: bytes | None, content_type: bytes, max_bytes: int, max_inputs: int, *, generates: bool
) -> pb.EmbedRequest | GenerateRequest:
    """The request in a value. Raises Undecodable or InvalidRequest."""
    if value is None:
        raise Undecodable("there is no value")
    if len(value) > max_bytes:
        raise InvalidRequest(f"the value has {len(value)} bytes: at most {max_bytes} are taken")
    if content_type in {PROTOBUF, JSON} and value.startswith(b"\0"):  # neither format begins with it
        raise Undecodable(
            "the value begins with magic byte 0, as a Schema Registry's serializers frame it: send the message alone"
        )
    if content_type is JSON:
        value = value.removeprefix(BOM_UTF8)  # as over HTTP
        return generation.decode_json(value) if generates else decode.decode_json(value, max_inputs)
    try:
        if content_type is not PROTOBUF:
            text = value.decode()
            return GenerateRequest(prompt=text) if generates else pb.EmbedRequest(inputs=[pb.Input(text=text)])
        if generates:
            generation.check(value)
            return GenerateRequest.FromString(value)
        decode.check(value, max_inputs)
        return _from_protobuf(value)
    except DecodeError:
        kind = "a GenerateRequest" if generates else "an EmbedRequest"
        raise Undecodable(
            f"the value is not {kind} in protobuf, as which a value without a content-type is read:"
            f" for JSON or text send content-type {JSON.decode()} or text/plain"
        ) from None
    except UnicodeDecodeError:
        raise Undecodable("the value is not UTF-8 text") from None


def decode_request(
    message: pb.EmbedRequest | GenerateRequest,
    defaults: Defaults,
    origin: object,
    *,
    received_s: float,
    wall_s: float,
    deadline_s: float,
    traceparent: bytes | None,
) -> Request:
    """The request of a message, as `decode.parse` and `generation.parse` make it. Raises InvalidRequest."""
    if isinstance(message, pb.EmbedRequest):
        request = decode.parse(message, defaults, origin, received_s=received_s, wall_s=wall_s, deadline_s=deadline_s)
    else:
        request = generation.parse(
            message, defaults, origin, received_s=received_s, wall_s=wall_s, deadline_s=deadline_s
        )
    request.traceparent = traceparent
    return request


def encode(request: Request, reply_id: str, now_s: float, *, as_json: bool) -> bytes:
    """The reply to a completed request; `now_s`: when its generation, if it is one, was complete."""
    try:
        if request.generation is not None:
            answer = generation.whole(request, reply_id, now_s)
            return json_of(answer) if as_json else answer.SerializeToString()
        return json_of(response(request, reply_id)) if as_json else to_protobuf(request, reply_id)
    except Exception:  # noqa: BLE001 - an unexpected error in one reply must not stop the others
        _LOG.exception("a reply could not be encoded")
        generates = request.generation is not None
        return encode_failure(request.request_id, _UNENCODABLE, reply_id, generates=generates, as_json=as_json)


def encode_failure(request_id: str, failure: Failure, reply_id: str, *, generates: bool, as_json: bool) -> bytes:
    """The reply to what did not become a request, or has none that can be encoded."""
    kind: type[GenerateResponse | pb.EmbedResponse] = GenerateResponse if generates else pb.EmbedResponse
    answer = kind(request_id=request_id[:MAX_ECHOED], reply_id=reply_id)
    fill_status(answer.status, failure)
    return json_of(answer) if as_json else answer.SerializeToString()


def internal_failure(request: Request) -> Failure | None:
    """The first failure that is not the sender's fault, if there is one: what was sent becomes a dead letter too."""
    failures = (outcome for outcome in request.outcomes if isinstance(outcome, Failure))
    return next((failure for failure in failures if failure.code is Code.INTERNAL), None)
