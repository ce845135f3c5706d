"""Sentences about settings that do not hold: the name, what it takes, never its value, which may be secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from json import JSONDecodeError
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from k8s.pod.setting_names import Names, element_of, env_name, field_at, group_of

_LISTS = (tuple, list, frozenset, set)
_SENTENCES: dict[str, str] = {
    "missing": "it must be given",
    "bool_parsing": "give true or false",
    "bool_type": "give true or false",
    "string_type": "give a text",
    "string_too_short": "it must not be empty",
    "path_type": "give a path",
    "literal_error": "give one of {expected}",
    "enum": "give one of {expected}",
    "greater_than": "give more than {gt}",
    "greater_than_equal": "give {ge} or more",
    "less_than": "give less than {lt}",
    "less_than_equal": "give {le} or less",
    "finite_number": "give a number",
}


def problems(settings_type: type[BaseModel], names: Names, errors: Sequence[ErrorDetails]) -> list[str]:
    """One line for each error; none for one that only follows from another."""
    places = [error["loc"] for error in errors]
    lines: dict[str, None] = {}
    for error in errors:
        place = error["loc"]
        follows = error["type"] == "too_short" and any(
            other[: len(place)] == place and other != place for other in places
        )
        if not follows:
            lines[_problem(settings_type, names, error)] = None
    return list(lines)


def bad_json(settings_type: type[BaseModel], prefix: str, environment: Mapping[str, str]) -> Iterator[str]:
    """A line for each variable that takes JSON and holds none."""
    by_name = {name.upper(): (name, value) for name, value in environment.items() if value}
    for path in _json_paths(settings_type):
        name, value = by_name.get(env_name(prefix, path), ("", ""))
        if name:
            try:
                json.loads(value)
            except (JSONDecodeError, RecursionError) as error:
                what = f"at character {error.pos + 1}" if isinstance(error, JSONDecodeError) else "it is too deep"
                field = field_at(settings_type, path)
                yield f"{name} is not JSON ({what}): {_takes(field, as_json=True)}"


def _problem(settings_type: type[BaseModel], names: Names, error: ErrorDetails) -> str:
    path = tuple(map(str, error["loc"]))
    key, kind = ".".join(path), error["type"]
    if kind == "extra_forbidden":
        return f"{key} is not a setting{names.meant(path)}"
    field = field_at(settings_type, path)
    sentence = _sentence(kind, error.get("ctx", {}), field, in_list=bool(path) and path[-1].isdecimal())
    if sentence is None:
        sentence = error["msg"].removeprefix("Value error, ")
    return f"{key}: {sentence}" if key else sentence


def _sentence(kind: str, context: Mapping[str, Any], field: FieldInfo | None, *, in_list: bool) -> str | None:
    """The remedy; None for an error that has a sentence already."""
    if kind in _SENTENCES:
        return _SENTENCES[kind].format_map(context)
    if kind.startswith("int_"):
        return "give a whole number"
    if kind.startswith(("float_", "decimal_")):
        return "give a number"
    if kind == "too_short":
        return f"give at least {_count(context)}"
    if kind in {"tuple_type", "list_type", "set_type", "frozen_set_type", "dict_type"} or kind.startswith("model_"):
        return _takes(field, in_list=in_list)
    return None


def _count(context: Mapping[str, Any]) -> str:
    least = context.get("min_length", 1)
    return "one" if least == 1 else str(least)


def _takes(field: FieldInfo | None, *, in_list: bool = False, as_json: bool = False) -> str:
    """What a list or mapping looks like, by an example; `in_list`: what one of its elements does."""
    if field is None:
        return "give a mapping"
    write: Callable[[object], str] = partial(json.dumps, ensure_ascii=False) if as_json else _yaml
    group, element = group_of(field.annotation), element_of(field.annotation)
    if group is not None or (in_list and element is not None):
        return f"give a mapping, such as {write(_example(group or element))}"
    if element is not None:
        return f"give a list of mappings, such as {write([_example(element)])}"
    if get_origin(field.annotation) in _LISTS:
        return f"give a list, such as {write(['a', 'b'])}"
    return "give a mapping of names to values"


def _example(group: type[BaseModel] | None) -> dict[str, object]:
    """The settings of a group that must be given, or else its first one."""
    fields = group.model_fields if group is not None else {}
    required = {name: each for name, each in fields.items() if each.is_required()} or dict(list(fields.items())[:1])
    return {name: ["…"] if get_origin(each.annotation) in _LISTS else "…" for name, each in required.items()}


def _yaml(value: object) -> str:
    """In one line, as YAML takes it too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_yaml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value)


def _json_paths(settings_type: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The settings that the environment gives as JSON: groups, lists and mappings."""
    for name, field in settings_type.model_fields.items():
        group = group_of(field.annotation)
        kinds = {get_origin(each) for each in (field.annotation, *get_args(field.annotation))}
        if group is not None or element_of(field.annotation) is not None or kinds & {*_LISTS, dict}:
            yield (*path, name)
        if group is not None:
            yield from _json_paths(group, (*path, name))
