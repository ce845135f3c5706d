"""Read settings: the environment over a YAML file over defaults, and every name that is not a setting refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from typing_extensions import override

from k8s.pod.errors import StartError
from k8s.pod.setting_errors import bad_json, problems
from k8s.pod.setting_names import Names, all_paths, env_name, is_service_link


class Group(BaseModel):
    """One group of settings, immutable; also all settings of a process.

    `other_names`: of vLLM, TEI and Kafka, by their last part: the setting that is the same here, or what to do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    other_names: ClassVar[Mapping[str, str]] = {}


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
    names = Names(settings_type, settings_type.other_names)
    wrong = [*_unknown_variables(settings_type, names, prefix), *bad_json(settings_type, prefix, os.environ)]
    if wrong:
        raise SettingsError("\n".join(wrong))
    try:
        loaded = create_model("Loaded", __base__=(settings_type, Sources))()
    except ValidationError as error:
        lines = problems(settings_type, names, error.errors(include_input=False))
        raise SettingsError("\n".join(lines)) from None
    except Exception as error:  # noqa: BLE001 - what the parsers of YAML and JSON raise, down to a date in month 13
        raise SettingsError(f"{file or 'the environment'}: {_reason(error)}") from None
    return settings_type.model_validate(dict(loaded))


def as_text(settings: Group) -> str:
    """The settings in force as YAML, secrets masked."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _unknown_variables(settings_type: type[BaseModel], names: Names, prefix: str) -> Iterator[str]:
    known = {env_name(prefix, path): path for path in all_paths(settings_type)}
    shown = {path: name for name, path in known.items()}
    for name in sorted(os.environ):
        own = name[len(prefix) :]
        if name.upper().startswith(prefix) and not is_service_link(own) and name.upper() not in known:
            yield f"{name} is not a setting{names.meant(tuple(own.lower().split('__')), shown)}"


def _reason(error: Exception) -> str:
    """The cause, without the content of the file: that may be secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return type(error).__name__
