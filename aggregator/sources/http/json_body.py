"""Decode a body's JSON. Empty values are left out, and an error names the field as its sender wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import TypeVar, cast

import msgspec

from aggregator.slow_lane import TakesLong, in_slow_lane, leave_loop
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_bounds import MOST_ELEMENTS, check_nested, holds_more
from aggregator.sources.http.refusals import refusal
from aggregator.sources.wire.decode import SMALL_BYTES

T = TypeVar("T")

_QUICK_BYTES = 2048
"""A longer body that has a fault is looked through in the slow lane: that takes ten times as long as to decode it."""

_MANY_OBJECTS = 512
"""Lists and objects that take two milliseconds, where each is an input."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HALF = re.compile("[\ud800-\udfff]")
_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_EMPTY: tuple[object, ...] = (None, [], {})
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "echo": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "include_obfuscation": (False,),
    "refusal": ("",),
    "reasoning": ("",),
    "reasoning_content": ("",),
}
"""Fields that are not supported, and their values that ask for nothing beside `_EMPTY`."""


def takes_long(data: bytes) -> bool:
    """Whether a body is to be decoded in the slow lane."""
    size = len(data)
    return size > SMALL_BYTES or (size > _QUICK_BYTES and data.count(b"[") + data.count(b"{") > _MANY_OBJECTS)


async def read_any(read: Callable[[bytes], T], data: bytes) -> T:
    """What `read` makes of a body, in the slow lane if it is long. Raises what it raises."""
    if not takes_long(data):
        with suppress(TakesLong):
            return read(data)
    return await in_slow_lane(partial(read, data))


def decode_body(decoder: msgspec.json.Decoder[T], data: bytes | memoryview, inside: str = "") -> T:
    """A body, or its field `inside`. Raises FieldError; on the event loop TakesLong for a long one with a fault."""
    if not inside:
        if data[:3] == _BYTE_ORDER_MARK:
            data = data[3:]
        if len(data) > SMALL_BYTES:
            check_nested(bytes(data))
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as first:
        error = first
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as broken:
        if len(data) > _QUICK_BYTES:
            leave_loop()
        raise _half_a_character(bytes(data)) or FieldError(f"the body is not JSON in UTF-8: {broken}") from None
    if len(data) > _QUICK_BYTES:
        leave_loop()
    if not inside and not holds_more(bytes(data), b",", MOST_ELEMENTS):
        with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # in a part that has no schema
            required = _required(cast("type[msgspec.Struct]", decoder.type))
            data = msgspec.json.encode(_asked(msgspec.json.decode(data), required))
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as second:
            error = second
    raise refusal(error, cast("type", decoder.type), inside) from None


@lru_cache(maxsize=64)  # there is a class for each form; its annotations take 100 µs to read
def _required(body: type[msgspec.Struct]) -> frozenset[str]:
    """The fields that a body must have: an empty field is not missing."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(body) if field.required)


def _asked(body: object, required: frozenset[str]) -> object:
    """A body without the fields, at any level, that ask for nothing; its own `required` ones stay.

    Every object is in `objects` before those inside it, so that from the last to the first each one is stripped after
    what it holds. The body itself is changed.
    """
    objects: list[dict[str, object]] = []
    unseen = [body] if body else []
    while unseen:
        value = unseen.pop()
        if isinstance(value, dict):
            objects.append(value)
            unseen.extend(each for each in value.values() if each and isinstance(each, (dict, list)))
        elif isinstance(value, list) and isinstance(value[0], dict):
            unseen.extend(each for each in value if each and isinstance(each, (dict, list)))
    for each in reversed(objects):
        kept = required if each is body else ()
        for name in [name for name, value in each.items() if name not in kept and _asks_nothing(name, value)]:
            del each[name]
    return body


def _asks_nothing(name: str, value: object) -> bool:
    if not value and value in _EMPTY:
        return True
    return name in _NEUTRAL and any(value == each and type(value) is type(each) for each in _NEUTRAL[name])


def _half_a_character(data: bytes) -> FieldError | None:
    """The refusal of JSON whose only fault is one half of a surrogate pair."""
    if not _ESCAPED_HALF.search(data) or holds_more(data, b",", MOST_ELEMENTS):
        return None
    try:
        found = _first_half(json.loads(data))
    except (ValueError, RecursionError):
        return None
    if found is None:
        return None
    place, half = found
    escape = f"\\u{ord(half):04x}"
    return FieldError(f"{place or 'the body'} holds half a character: {escape} is one half of a surrogate pair", place)


def _first_half(body: object) -> tuple[str, str] | None:
    """The first half of a surrogate pair in a text or a name, behind its place; a name's place is that of its object.

    The walk keeps its way down, and makes a place of it only for what it finds.
    """
    way: list[tuple[str | int, Iterator[tuple[str | int, object]]]] = [("", iter([("", body)]))]
    while way:
        for step, value in way[-1][1]:
            if isinstance(step, str) and not step.isascii() and (half := _HALF.search(step)):
                return _place(step for step, _ in way), half[0]
            if isinstance(value, str):
                if not value.isascii() and (half := _HALF.search(value)):
                    return _place([*(step for step, _ in way), step]), half[0]
            elif isinstance(value, dict):
                way.append((step, iter(value.items())))
                break
            elif isinstance(value, list):
                way.append((step, iter(enumerate(value))))
                break
        else:
            way.pop()
    return None


def _place(steps: Iterable[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps if step != "").lstrip(".")
