"""Walk the fields of settings types: groups, settings, sequences of groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: where it stands, what it takes, and its default (PydanticUndefined where it must be given)."""

    path: tuple[str, ...]
    field: FieldInfo
    default: Any


def leaves(
    settings_type: type[BaseModel], path: tuple[str, ...] = (), defaults: BaseModel | None = None
) -> Iterator[Leaf]:
    """Every setting of a type, group by group; a group that has a description of its own is one setting, a mapping."""
    for name, field in settings_type.model_fields.items():
        group = group_of(field.annotation)
        default = field.get_default() if defaults is None else getattr(defaults, name)
        if group is None or field.description:
            yield Leaf((*path, name), field, default)
        else:
            yield from leaves(group, (*path, name), default if isinstance(default, BaseModel) else None)


def all_paths(settings_type: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every name that a setting may be given by, those of groups as a whole included."""
    for name, field in settings_type.model_fields.items():
        yield (*path, name)
        group = group_of(field.annotation) or element_of(field.annotation)
        if group is not None:
            yield from all_paths(group, (*path, name))


def group_of(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation names outright, if it does."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def element_of(annotation: Any) -> type[BaseModel] | None:
    """The model of which an annotation is a sequence, if it is."""
    models = (group_of(argument) for argument in get_args(annotation))
    return next((model for model in models if model is not None), None)


def env_name(prefix: str, path: Sequence[str]) -> str:
    """What the setting at `path` is called in the environment."""
    return prefix + "__".join(path).upper()
