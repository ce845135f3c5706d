"""Walk the fields of settings types: groups, settings, sequences of groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: where it stands and what it takes."""

    path: tuple[str, ...]
    field: FieldInfo

    def env_name(self, prefix: str) -> str:
        """Its name in the environment."""
        return env_name(prefix, self.path)

    @property
    def default(self) -> Any:
        """Its default, or PydanticUndefined where it must be given."""
        return self.field.get_default(call_default_factory=True, validated_data={})


def leaves(settings_type: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every setting of a type, group by group."""
    for name, field in settings_type.model_fields.items():
        group = group_of(field.annotation)
        if group is None:
            yield Leaf((*path, name), field)
        else:
            yield from leaves(group, (*path, name))


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


def field_at(settings_type: type[BaseModel], path: Sequence[str | int]) -> FieldInfo | None:
    """The field at a path; numbers in it are places in a sequence."""
    model: type[BaseModel] | None = settings_type
    field: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model is not None else None
        if field is None:
            return None
        model = group_of(field.annotation) or element_of(field.annotation)
    return field
