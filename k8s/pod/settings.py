"""Read settings: the environment over a YAML file over defaults, and every name that is not a setting refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from json import JSONDecodeError
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from typing_extensions import override

from k8s.pod.errors import StartError

_SERVICE_LINK = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_\w+)", re.ASCII)
"""Variables that Kubernetes sets in a pod for a Service of the same name."""


class Group(BaseModel):
    """One group of settings, immutable; also all settings of a process."""

    model_config = ConfigDict(frozen=True, extra="forbid")


S = TypeVar("S", bound=Group)


class SettingsError(StartError):
    """The settings do not hold; one line per problem."""


def load(settings_type: type[S], prefix: str, file: Path | None = None) -> S:
    """Settings from the environment (names `<prefix>GROUP__NAME`, lists and mappings as JSON) over the YAML `file`.

    An empty variable counts as not set. Raises SettingsError with a line per problem: an unknown name (with the
    nearest known one), a value that does not fit, a file that cannot be read. No line quotes a value: it may be secret.
    """

    class Sources(BaseSettings):
        model_config = SettingsConfigDict(nested_model_default_partial_update=True)

        @classmethod
        @override
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            env = EnvSettingsSource(settings_cls, env_prefix=prefix, env_nested_delimiter="__", env_ignore_empty=True)
            return env, YamlConfigSettingsSource(settings_cls, file)

    if file is not None and not file.is_file():
        raise SettingsError(f"{file}: no such file")
    if unknown := "\n".join(_unknown_variables(settings_type, prefix)):
        raise SettingsError(unknown)
    try:
        loaded = create_model("Loaded", __base__=(settings_type, Sources))()
    except ValidationError as error:
        lines = dict.fromkeys(_problem(settings_type, detail) for detail in error.errors(include_input=False))
        raise SettingsError("\n".join(lines)) from None
    except Exception as error:  # noqa: BLE001 - what the parsers of YAML and JSON raise, down to a date in month 13
        raise SettingsError(f"{file or 'the environment'}: {_reason(error)}") from None
    return settings_type.model_validate(dict(loaded))


def as_text(settings: Group) -> str:
    """The settings in force as YAML, secrets masked."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _unknown_variables(settings_type: type[BaseModel], prefix: str) -> Iterator[str]:
    known = {env_name(prefix, path) for path in all_paths(settings_type)}
    for name in sorted(os.environ):
        ours = name.upper().startswith(prefix) and not _SERVICE_LINK.fullmatch(name[len(prefix) :])
        if ours and name.upper() not in known:
            yield f"{name} is not a setting{_suggestion(name.upper(), known)}"


def _problem(settings_type: type[BaseModel], error: ErrorDetails) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] != "extra_forbidden":
        return f"{key}: {error['msg']}" if key else error["msg"]
    return f"{key} is not a setting{_suggestion(key, {'.'.join(path) for path in all_paths(settings_type)})}"


def _suggestion(name: str, known: set[str]) -> str:
    nearest = get_close_matches(name, sorted(known), n=1)
    return f": did you mean {nearest[0]}?" if nearest else "; --help lists all"


def _reason(error: Exception) -> str:
    """The cause, without the content of the file: that may be secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error.__cause__, JSONDecodeError):
        return f"{error}: {error.__cause__.msg}"
    return type(error).__name__


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: where it stands, what it takes, and its default (PydanticUndefined where it must be given)."""

    path: tuple[str, ...]
    field: FieldInfo
    default: Any


def leaves(
    settings_type: type[BaseModel], path: tuple[str, ...] = (), defaults: BaseModel | None = None
) -> Iterator[Leaf]:
    """Every setting of a type, group by group; a group with a description is one setting, a mapping."""
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
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def element_of(annotation: Any) -> type[BaseModel] | None:
    models = (group_of(argument) for argument in get_args(annotation))
    return next((model for model in models if model is not None), None)


def env_name(prefix: str, path: Sequence[str]) -> str:
    return prefix + "__".join(path).upper()
