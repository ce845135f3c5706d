"""Refusals of a body's fields in the words of its form: the field as it was sent, what it takes, and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from aggregator.sources.http.errors import FieldError

_AT = " - at `$"
_PATH = re.compile(r"((?:\.\w+|\[(?:\d+|\.\.\.)\])+)`")
_LONGEST_PATH = 256
"""Characters of the place of a fault; a longer one is none, but a text of the caller."""
_NAMED = re.compile(r"^Object (contains unknown|missing required) field `(.*)`$", re.DOTALL)
_GOT = re.compile(r"(?:, got `(\w+)`|^Invalid enum value (.*))$", re.DOTALL)
_STEP = re.compile(r"\[(?:\d+|\.\.\.)\]|[^.\[]+")
_LONGEST_NAME = 64
"""Characters of an unknown field that is compared with those that there are."""
_KINDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}

_SIMPLE: dict[type, str] = {inspect.StrType: _KINDS["str"], inspect.BoolType: _KINDS["bool"]}


def refusal(error: msgspec.ValidationError, form: type, inside: str) -> FieldError:
    """What is wrong with a body of `form`, or with its field `inside`."""
    text, root = str(error), _type_of(form)
    message, path = _placed(text)
    kind = _type_at(root, _STEP.findall(path))
    if _NAMED.match(text) and not (_NAMED.match(message) and _is_object(kind)):
        message, path, kind = text, "", root  # the name of a field of the body looks like a place
    place = f"{inside}{path}"
    if named := _NAMED.match(message):
        how, name = named.groups()
        field = f"{place}.{name}" if place else name
        if how == "contains unknown":
            return FieldError(_unknown(name, field, kind), field)
        return FieldError(f"{field} is missing: expected {_words(_type_at(kind, [name]))}", field)
    wrong = ""
    if got := _GOT.search(message):
        wrong = f", got {_KINDS.get(got[1], got[1]) or got[2]}"
    return FieldError(f"{place or 'the body'}: expected {_words(kind)}{wrong}", place)


def _placed(text: str) -> tuple[str, str]:
    """What msgspec says is wrong, and where: the last place that it names, as the caller's text may look like one."""
    message, found, rest = text.rpartition(_AT)
    if not found or len(rest) > _LONGEST_PATH or not (path := _PATH.fullmatch(rest)):
        return text, ""
    return message, path[1].removeprefix(".")


@lru_cache(maxsize=64)
def _type_of(form: Any) -> inspect.Type:
    return inspect.type_info(form)


def _alternatives(kind: inspect.Type | None) -> Iterator[inspect.Type]:
    """A type, or those of a union."""
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _alternatives(each)
    elif kind is not None:
        yield kind


def _is_object(kind: inspect.Type | None) -> bool:
    return any(isinstance(each, inspect.StructType) for each in _alternatives(kind))


def _type_at(kind: inspect.Type | None, steps: list[str]) -> inspect.Type | None:
    """The type of the part of a value to which the steps lead: fields, places in lists, `[...]` in mappings."""
    for step in steps:
        within: inspect.Type | None = None
        for each in _alternatives(kind):
            if isinstance(each, inspect.ListType) and step.startswith("["):
                within = each.item_type
            elif isinstance(each, inspect.DictType) and step == "[...]":
                within = each.value_type
            elif isinstance(each, inspect.StructType):
                within = within or next((field.type for field in each.fields if field.encode_name == step), None)
        kind = within
    return kind


def _unknown(name: str, field: str, kind: inspect.Type | None) -> str:
    """The message for a name that an object of this type has not; `field`: its path in the body."""
    forms = [each for each in _alternatives(kind) if isinstance(each, inspect.StructType)]
    for form in forms:
        remedies: Mapping[str, str] = getattr(form.cls, "remedies", {})
        if name in remedies:
            remedy = remedies[name]
            return remedy if name in remedy else f"{field} is not supported: {remedy}"
    known = [each.encode_name for form in forms for each in form.fields]
    if similar := get_close_matches(name, known, n=1) if len(name) <= _LONGEST_NAME else []:
        return f"unknown field {field}: did you mean {similar[0]}?"
    return f"unknown field {field}: leave it out"


def _words(kind: inspect.Type | None) -> str:
    """What a type takes."""
    match kind:
        case inspect.Metadata(extra_json_schema={"description": str(words)}):
            return words
        case inspect.Metadata():
            return _words(kind.type)
        case inspect.UnionType(types=types):
            return " or ".join(_words(each) for each in types if not isinstance(each, inspect.NoneType))
        case inspect.LiteralType(values=values):
            words = ", ".join(map(str, values))
            return f"one of {words}" if len(values) > 1 else f"'{words}'"
        case inspect.IntType() | inspect.FloatType():
            return f"{_KINDS['int' if isinstance(kind, inspect.IntType) else 'float']}{_range(kind.ge, kind.le)}"
        case inspect.ListType():
            most = f", at most {kind.max_length}" if kind.max_length else ", at least one" * bool(kind.min_length)
            each = _words(kind.item_type)
            return f"a list of texts{most}" if each == _KINDS["str"] else f"a list{most}, each {each}"
        case inspect.StructType():
            required = ", ".join(field.encode_name for field in kind.fields if field.required)
            return f"an object with {required}" if required else "an object"
        case _:
            return _SIMPLE.get(type(kind), "another value")


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" from {least:g} to {most}" if most is not None else f" of at least {least:g}"
