"""Values in Kafka and Redis: requests by content type, the allowed destinations of replies, and the replies."""

from __future__ import annotations

import fnmatch
import logging
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import DecodeError

from aggregator.errors import Code, InvalidRequest, Undecodable
from aggregator.request.kind import Kind
from aggregator.request.request import Defaults, Failure, Request, Source
from aggregator.scheduler.work_item import Priority
from aggregator.settings.brokers import IntakeSettings
from aggregator.sources.wire.encode import MAX_ECHOED, fill_status, json_of

_LOG = logging.getLogger(__name__)
_UNENCODABLE = Failure(Code.INTERNAL, "the reply could not be encoded")

PROTOBUF: Final = b"application/x-protobuf"
JSON: Final = b"application/json"
DEAD_LETTER_SUFFIX = "-dlt"
"""Appended to the name of a query topic or a request stream."""
MAX_BYTES = 4 * 1024 * 1024
"""A larger value is refused before it is parsed, as a larger call is."""
LARGE_BYTES = 16 * 1024
"""Values from this size on are decoded in the slow lane, two milliseconds or more: JSON takes 20 us, and up to 140 us
a KiB.
"""
TURN_RECORDS = 100
"""Small values that are decoded in one turn of the event loop: they take two milliseconds at most."""

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
    """The defaults of a topic or stream. If it sets a tenant, its requests may not name one."""
    model, priority = place.model or default_model, Priority[place.priority.upper()]
    return Defaults(source, model, priority, place.tenant, trusts_tenant=trusts_tenant and not place.tenant)


def permitted(
    replies: Collection[str], inputs: Collection[str], allowed: Sequence[str], prefix: str = ""
) -> Callable[[str], bool]:
    """Whether a request may name this place for its reply: one of `replies`, or a match of an `allowed` pattern.

    It is never where requests or dead letters are, neither by its name nor by that with `prefix` before it.
    """
    pattern = re.compile("|".join(map(fnmatch.translate, allowed))) if allowed else None
    own = {*inputs, *(name + DEAD_LETTER_SUFFIX for name in inputs)}
    never = own | {prefix + name for name in own}

    @lru_cache(maxsize=4096)
    def permits(name: str) -> bool:
        return name not in never and (name in replies or (pattern is not None and bool(pattern.match(name))))

    return permits


def bounded(value: bytes | None, max_bytes: int) -> bytes:
    """The value, if it has at most `max_bytes`. Raises Undecodable without a value, InvalidRequest for a larger one."""
    if value is None:
        raise Undecodable("there is no value")
    if len(value) > max_bytes:
        raise InvalidRequest(f"the value has {len(value)} bytes: at most {max_bytes} are taken")
    return value


def message_of(value: bytes | None, content_type: bytes, max_bytes: int, max_inputs: int, *, kind: Kind) -> Any:
    """The request in a value, of a place with requests of one kind. Raises Undecodable or InvalidRequest."""
    value = bounded(value, max_bytes)
    if content_type in {PROTOBUF, JSON} and value.startswith(b"\0"):  # neither format begins with it
        raise Undecodable(
            "the value begins with magic byte 0, as a Schema Registry's serializers frame it: send the message alone"
        )
    try:
        if content_type is JSON:
            return kind.decode_json(value.removeprefix(BOM_UTF8), max_inputs)  # as over HTTP
        return kind.decode(value, max_inputs) if content_type is PROTOBUF else kind.decode_text(value.decode())
    except DecodeError:
        raise Undecodable(
            f"the value is not {kind.message} in protobuf, as which a value without a content-type is read:"
            f" for JSON or text send content-type {JSON.decode()} or text/plain"
        ) from None
    except UnicodeDecodeError:
        raise Undecodable("the value is not UTF-8 text") from None


def encode(request: Request, reply_id: str, now_s: float, *, as_json: bool) -> bytes:
    """The reply to a completed request, at `now_s` (monotonic)."""
    kind = request.kind
    try:
        if as_json:
            return json_of(kind.answer(request, reply_id, now_s))
        return kind.to_protobuf(request, reply_id, now_s)
    except Exception:  # noqa: BLE001 - an unexpected error in one reply must not stop the others
        _LOG.exception("a reply could not be encoded")
        return encode_failure(
            request.request_id, _UNENCODABLE, reply_id, kind=kind, as_json=as_json, replay=request.replay
        )


def encode_failure(
    request_id: str, failure: Failure, reply_id: str, *, kind: Kind, as_json: bool, replay: bool = False
) -> bytes:
    """The reply to a value that did not become a request, or whose own reply cannot be encoded."""
    answer = kind.response(request_id=request_id[:MAX_ECHOED], reply_id=reply_id, replay=replay)
    fill_status(answer.status, failure)
    encoded: bytes = json_of(answer) if as_json else answer.SerializeToString()
    return encoded


def internal_failure(request: Request) -> Failure | None:
    """The first failure that is not the sender's fault, if any: then the request becomes a dead letter too."""
    failures = (outcome for outcome in request.outcomes if isinstance(outcome, Failure))
    return next((failure for failure in failures if failure.code is Code.INTERNAL), None)
