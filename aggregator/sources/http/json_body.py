"""Decode a body's JSON. Empty values are left out, and an error names the field as its sender wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TypeVar, cast

import msgspec

from aggregator.sources.http.errors import FieldError

T = TypeVar("T")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PLACE = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_NAMED = re.compile(r"^Object (contains unknown|missing required) field `(.*)`$", re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")
_MOST_NESTED = 1 << 18
"""Lists and objects of a body that is decoded without a schema; each costs some 64 bytes."""
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


def decode_body(decoder: msgspec.json.Decoder[T], data: bytes | memoryview, inside: str = "") -> T:
    """A body, or its field `inside`. Raises FieldError."""
    if not inside and data[:3] == _BYTE_ORDER_MARK:
        data = data[3:]
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        refusal = error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _half_a_character(bytes(data)) or FieldError(f"the body is not JSON in UTF-8: {error}") from None
    if not inside and _is_shallow(bytes(data)):
        with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # in a part that has no schema
            data = msgspec.json.encode(_asked(msgspec.json.decode(data), _required(decoder)))
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            refusal = error
    raise _refusal(refusal, inside) from None


def _refusal(error: msgspec.ValidationError, inside: str) -> FieldError:
    message, path = cast("re.Match[str]", _PLACE.match(str(error))).groups()
    field = f"{inside}{path or ''}"
    if named := _NAMED.match(message):
        how, name = named.groups()
        field = f"{field}.{name}" if field else name
        if how == "contains unknown":
            message = f"unknown field `{name}`, or not supported with this value"
    return FieldError(message, field)


def _is_shallow(data: bytes) -> bool:
    return data.count(b"[") + data.count(b"{") <= _MOST_NESTED


def _required(decoder: msgspec.json.Decoder[T]) -> Collection[str]:
    """The fields that a body must have: an empty field is not missing."""
    body = cast("type[msgspec.Struct]", decoder.type)
    return [field.encode_name for field in msgspec.structs.fields(body) if field.required]


def _asked(value: object, required: Collection[str] = ()) -> object:
    """A value without the fields, at any level, that ask for nothing; its own `required` ones stay."""
    if isinstance(value, dict):
        kept = ((name, _asked(each)) for name, each in value.items())
        return {name: each for name, each in kept if name in required or not _asks_nothing(name, each)}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_asked(each) for each in value]
    return value


def _asks_nothing(name: str, value: object) -> bool:
    return any(value == each and type(value) is type(each) for each in _EMPTY + _NEUTRAL.get(name, ()))


def _half_a_character(data: bytes) -> FieldError | None:
    """The refusal of JSON whose only fault is one half of a surrogate pair."""
    if not _is_shallow(data):
        return None
    try:
        for place, text in _texts(json.loads(data), ""):
            if half := _HALF.search(text):
                escape = f"\\u{ord(half[0]):04x}"
                return FieldError(
                    f"{place or 'the body'} holds half a character: {escape} is one half of a surrogate pair", place
                )
    except (ValueError, RecursionError):
        pass
    return None


def _texts(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Every text with its place; a name's place is that of its object."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield place, name
            if isinstance(each, (str, dict, list)):
                yield from _texts(each, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            if isinstance(each, (str, dict, list)):
                yield from _texts(each, f"{place}[{index}]")
