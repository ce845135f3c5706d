"""The part of requests that all tasks share: their JSON, and the fields besides the inputs."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from itertools import islice
from math import inf
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.message_factory import GetMessageClass

from aggregator.errors import InvalidRequest, Undecodable
from aggregator.request.kind import Kind
from aggregator.request.request import Defaults, Request, checked_tenant
from aggregator.scheduler.work_item import Priority
from protos.embedding.v1 import embedding_pb2 as pb

M = TypeVar("M", bound=ProtobufMessage)
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]', re.DOTALL)
"""The bytes that begin one or more Python objects: a string, an object, an array."""
_MARKS_PER_INPUT = 5  # {"tokenIds": {"ids": []}}
OTHER_MARKS = 4096  # a request has fewer than 64 besides its inputs; the rest is for ids that are written as strings
PRIORITIES: Mapping[Priority, pb.Priority] = {
    Priority.INTERACTIVE: pb.PRIORITY_INTERACTIVE,
    Priority.DEFAULT: pb.PRIORITY_DEFAULT,
    Priority.BACKGROUND: pb.PRIORITY_BACKGROUND,
}
"""The numbers of the classes in requests."""
_CLASSES: Mapping[int, Priority] = {number: priority for priority, number in PRIORITIES.items()}


def decode_checked(kind: type[M], data: bytes, check: Callable[..., None], *limits: int) -> M:
    """The message in these bytes. Raises InvalidRequest if `check` does, or if they do not parse as `kind`."""
    try:
        check(data, *limits)
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the message cannot be decoded as {kind.DESCRIPTOR.full_name}") from None


def json_object(value: bytes) -> dict[str, object]:
    """The object in a value. Raises Undecodable."""
    try:
        document: object = json.loads(value.decode())
    except (ValueError, RecursionError):
        raise Undecodable("the value is not JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise Undecodable("the value is not a JSON object")
    return document


def fill_json(message: M, document: dict[str, object]) -> M:
    """The message of a JSON object, by protobuf's rules.

    Raises InvalidRequest, which names the field at fault. Protobuf's own errors may quote a query's text.
    """
    try:
        return ParseDict(document, message)
    except Exception:  # noqa: BLE001 - anything: SystemError for a name with half a surrogate pair in it
        found = _fault_in(document, type(message))
    what, field = found or ("two of its fields exclude each other", "")
    raise InvalidRequest(f"the value is not a {message.DESCRIPTOR.name} in JSON: {what}", field)


def _fault_in(document: dict[str, object], kind: type[ProtobufMessage], place: str = "") -> tuple[str, str] | None:
    """The first field of an object that does not fit, in words, and its path."""
    fields = {name: field for field in kind.DESCRIPTOR.fields for name in (field.name, field.json_name)}
    for number, (name, value) in enumerate(document.items(), 1):
        field = fields.get(name)
        if field is None:
            return f"{place.removesuffix('.') or 'it'} has no field like number {number}", ""
        try:
            ParseDict({name: value}, kind())
        except Exception:  # noqa: BLE001 - as above
            path = f"{place}{name}"
            if field.message_type is not None and isinstance(value, dict):
                deeper = _fault_in(value, GetMessageClass(cast("Descriptor", field.message_type)), f"{path}.")
                if deeper is not None:
                    return deeper
            return f"the value of {path} is invalid{choices(cast('FieldDescriptor', field))}", path
    return None


def choices(field: FieldDescriptor) -> str:
    """The names that a field takes, if it takes names."""
    return f": use one of {', '.join(field.enum_type.values_by_name)}" if field.enum_type is not None else ""


def check_marks(value: bytes, max_inputs: int) -> None:
    """A megabyte of JSON can hold 65,000 inputs, at 15 us each: with more than are allowed it is not parsed."""
    most = _MARKS_PER_INPUT * max_inputs + OTHER_MARKS
    if len(value) <= most or sum(map(value.count, b'"{[')) <= most:
        return
    if next(islice(_MARKS.finditer(value), most, None), None) is not None:
        raise InvalidRequest(
            f"the value holds more than {most} strings, objects and arrays: at most {max_inputs} inputs are taken"
        )


def parse(
    kind: Kind,
    message: Any,
    defaults: Defaults,
    origin: object,
    *,
    received_s: float,
    wall_s: float,
    deadline_s: float = inf,
    traceparent: bytes | None = None,
) -> Request:
    """Turn a public message into a Request: the parts that its kind reads, and the fields that all have.

    `wall_s` is the wall clock (Unix seconds) at `received_s`; `deadline_s` is a deadline from outside the
    message (gRPC's own). Raises InvalidRequest where the whole request is at fault; an input at fault only has
    its own Failure.
    """
    inputs, outcomes, options, details = kind.parts(message, defaults, received_s)
    if message.HasField("expire_time"):
        expire_s = message.expire_time.seconds + message.expire_time.nanos * 1e-9
        deadline_s = min(deadline_s, received_s + expire_s - wall_s)
    tenant = defaults.trusts_tenant and message.tenant
    remaining = outcomes.count(None)
    return Request(
        kind=kind,
        request_id=message.request_id or _random_id(),
        model=message.model or defaults.model,
        model_revision=message.model_revision,
        inputs=inputs,
        options=options,
        priority=class_of(message.priority, defaults.priority),
        source=defaults.source,
        tenant=checked_tenant(tenant, "tenant") if tenant else defaults.tenant,
        received_s=received_s,
        deadline_s=deadline_s,
        origin=origin,
        outcomes=outcomes,
        remaining=remaining,
        failed=remaining < len(outcomes),
        traceparent=traceparent,
        details=details,
    )


def _random_id() -> str:
    """128 random bits in hexadecimal, for a request without an id: ten times cheaper than `uuid4`."""
    return f"{random.getrandbits(128):032x}"


def check_count(count: int, most: int, things: str, field: str, error: type[InvalidRequest] = InvalidRequest) -> None:
    """Raises `error` for a list of no `things`, or of more than `most`."""
    if not 0 < count <= most:
        limit = f"at most {most} are taken" if count else "at least one is needed"
        raise error(f"{count} {things}: {limit}", field)


def class_of(value: int, default: Priority) -> Priority:
    """The class of that number, or the default. Raises InvalidRequest."""
    if not value:
        return default
    priority = _CLASSES.get(value)
    if priority is None:
        raise InvalidRequest(
            f"priority {value} is not known: use one of {', '.join(map(pb.Priority.Name, _CLASSES))}", "priority"
        )
    return priority
