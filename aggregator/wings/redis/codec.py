"""Decode stream entries to requests, and encode their replies and dead letters: the wire format of Redis."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import cast

from aggregator.errors import Code, InvalidRequest, NeverFits, NotPermitted, RequestError, Undecodable, shown
from aggregator.request.kind import Kind
from aggregator.request.request import Defaults, Failure, Request
from aggregator.sources.wire import values
from aggregator.sources.wire.message import parse
from aggregator.sources.wire.values import DEAD_LETTER_SUFFIX, JSON, MAX_BYTES, PROTOBUF

_LOG = logging.getLogger(__name__)
_ECHOED = (b"correlation_id", b"traceparent", b"tracestate")
"""Fields that are copied to the reply."""
REDIS = "redis"
"""The name of the source, and of the one partition that a stream is."""
LIST = "list:"
MAX_OTHER_BYTES = 64 * 1024
"""The largest size of an entry's fields without its value."""
_MOST_DIGITS = 20  # of a size or time, before it is taken for one
_FIRST_MS = 1e11
"""The year 5138 in seconds, 1973 in milliseconds: a larger number was never meant as seconds."""
_FINER_UNITS = ("milliseconds", 1e14), ("microseconds", 1e17), ("nanoseconds", inf)
"""Each with the number at which the next one begins."""

Command = tuple[bytes | str | int, ...]


@dataclass(frozen=True, slots=True)
class StreamIntake:
    """How one consumer reads one stream; `reply_to`: of entries that name no place for their reply."""

    stream: str
    group_id: str
    consumer: str
    defaults: Defaults
    reply_to: str
    permits: Callable[[str], bool]
    kind: Kind

    @property
    def place(self) -> tuple[str, str, str]:
        """The first arguments of Redis's commands for the group."""
        return self.stream, self.group_id, self.consumer


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One entry of a request stream, as Redis returns it."""

    intake: StreamIntake
    entry_id: bytes
    fields: Mapping[bytes, bytes]

    def text(self, name: bytes) -> str:
        """A field; empty if it is not there. Raises InvalidRequest."""
        try:
            return self.fields.get(name, b"").decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"field {name.decode()} is not UTF-8") from None

    @property
    def value_bytes(self) -> int:
        return len(self.fields.get(b"value", b""))


@dataclass(frozen=True, slots=True)
class EntryOrigin:
    """The entry of a request, and how it is replied to. `reply_to`: empty if nobody can be answered."""

    entry: Entry
    reply_to: str = ""
    as_json: bool = False

    def reply_id(self, request_id: str) -> str:
        """The same for every delivery of the same entry to the same group; 32 hexadecimal digits."""
        intake = self.entry.intake
        place = f"{intake.group_id}\0{intake.stream}\0{self.entry.entry_id.decode()}\0{request_id}"
        return hashlib.blake2b(place.encode(errors="surrogatepass"), digest_size=16).hexdigest()


@dataclass(slots=True, eq=False)
class EntryAnswer:
    """The messages to be written before an entry is acknowledged: `reply` and `letter`, each None once it is written.

    `letter`: why the entry itself is kept as a dead letter. `refused`: the code of an entry that did not become a
    request. `unwritten`: why its reply never will be.
    """

    origin: EntryOrigin
    reply: bytes | None = None
    letter: tuple[Code, str] | None = None
    refused: Code = Code.OK
    unwritten: Failure | None = None


_ENTRY_BYTES, _FIELD_BYTES = 600, 100
"""Of the objects for an entry without an input, and for each of its fields."""


def size_bytes(parts: Sequence[bytes]) -> int:
    """The memory of an entry, given as names and values in turn: twice, as the texts in it are made beside it."""
    return _ENTRY_BYTES + _FIELD_BYTES * len(parts) + 2 * sum(map(len, parts))


def origin_of(request: Request) -> EntryOrigin:
    return cast("EntryOrigin", request.origin)


def refused_for_room(request: Request, needed_bytes: int, largest_bytes: int) -> EntryAnswer:
    """The answer to a request that could never be held with its reply."""
    origin, error = origin_of(request), NeverFits(needed_bytes, largest_bytes)
    answer = EntryAnswer(origin, refused=error.code)
    failure, identity = Failure.of(error), origin.reply_id(request.request_id)
    answer.reply = values.encode_failure(
        request.request_id, failure, identity, kind=request.kind, as_json=origin.as_json
    )
    return answer


def decode_entry(entry: Entry, *, received_s: float, wall_s: float) -> Request | EntryAnswer:
    """The request in an entry, or the answer to a refused entry.

    `wall_s` is Redis's clock (Unix seconds) at `received_s` (monotonic).
    """
    intake, origin = entry.intake, EntryOrigin(entry)
    request_id, readable = f"{intake.stream}-{entry.entry_id.decode()}", False
    try:
        origin = EntryOrigin(entry, _reply_to(entry))
        request_id = entry.text(b"request_id") or request_id
        content_type = values.content_type_of(entry.text(b"content-type"))
        origin = replace(origin, as_json=content_type is not PROTOBUF)
        deadline_s = _expire_s(entry) + received_s - wall_s
        limits = MAX_BYTES, intake.defaults.max_inputs
        message = values.message_of(entry.fields.get(b"value"), content_type, *limits, kind=intake.kind)
        message.request_id = request_id = message.request_id or request_id
        readable = True
        return parse(
            intake.kind,
            message,
            intake.defaults,
            origin,
            received_s=received_s,
            wall_s=wall_s,
            deadline_s=deadline_s,
            traceparent=entry.fields.get(b"traceparent"),
        )
    except RequestError as error:
        refused = error
    except Exception as error:  # noqa: BLE001 - one entry must not stop all others, each time that it is taken over
        # Its traceback stays out of the log, as it may quote the text.
        _LOG.error("cannot decode an entry", extra={"stream": intake.stream, "error": type(error).__name__})
        refused = Undecodable("the entry cannot be read")
    answer = EntryAnswer(origin, refused=refused.code)
    if not origin.reply_to or not readable:
        answer.letter = refused.code, str(refused)
    if origin.reply_to:
        failure, identity = Failure.of(refused), origin.reply_id(request_id)
        answer.reply = values.encode_failure(request_id, failure, identity, kind=intake.kind, as_json=origin.as_json)
    return answer


def _reply_to(entry: Entry) -> str:
    reply_to = entry.text(b"reply_to") or entry.intake.reply_to
    if not entry.intake.permits(reply_to):
        raise NotPermitted(f"reply_to {shown(reply_to)} is not permitted: see redis.allowed_replies")
    return reply_to


def _expire_s(entry: Entry) -> float:
    """When the request expires (Unix seconds). Raises InvalidRequest, also for fields that stayed in Redis."""
    if b"value-size" in entry.fields:
        value, others = (entry.text(name)[:_MOST_DIGITS] for name in (b"value-size", b"other-size"))
        raise InvalidRequest(
            f"the value has {value} bytes, and the other fields have {others}: at most {MAX_BYTES} and"
            f" {MAX_OTHER_BYTES} are taken"
        )
    if not (given := entry.text(b"expire")):
        return inf
    looks_like = ""
    with suppress(ValueError):
        expire_s = float(given)
        if abs(expire_s) < _FIRST_MS:
            return expire_s
        if isfinite(expire_s):
            unit = next(name for name, below in _FINER_UNITS if abs(expire_s) < below)
            looks_like = f", which looks like {unit}"
    shown = given[:_MOST_DIGITS]
    raise InvalidRequest(
        f"field expire must be a Unix time in seconds, got {shown if looks_like else repr(shown)}{looks_like}"
    )


def answer_of(request: Request, now_s: float) -> EntryAnswer:
    """The messages for a completed request; `now_s`: when its generation, if it is one, was complete."""
    origin = origin_of(request)
    reply = values.encode(request, origin.reply_id(request.request_id), now_s, as_json=origin.as_json)
    failure = values.internal_failure(request)
    return EntryAnswer(origin, reply, None if failure is None else (failure.code, failure.message))


def write_reply(origin: EntryOrigin, reply: bytes, max_length: int, list_ttl_ms: int) -> Sequence[Command]:
    if origin.reply_to.startswith(LIST):
        key = origin.reply_to.removeprefix(LIST)
        return [("RPUSH", key, reply), ("PEXPIRE", key, list_ttl_ms)]
    fields = origin.entry.fields
    echoed = [part for name in _ECHOED if name in fields for part in (name, fields[name])]
    added = ("value", reply, "content-type", JSON if origin.as_json else PROTOBUF, *echoed)
    return [("XADD", origin.reply_to, "MAXLEN", "~", max_length, "*", *added)]


def write_dead_letter(entry: Entry, code: Code, message: str, max_length: int) -> Command:
    added = {
        b"dlt-original-stream": entry.intake.stream.encode(),
        b"dlt-original-id": entry.entry_id,
        b"dlt-original-consumer-group": entry.intake.group_id.encode(),
        b"dlt-error-code": code.name.encode(),
        b"dlt-error-message": message.encode(),
    }
    fields = [part for pair in (dict(entry.fields) | added).items() for part in pair]
    return ("XADD", entry.intake.stream + DEAD_LETTER_SUFFIX, "MAXLEN", "~", max_length, "*", *fields)
