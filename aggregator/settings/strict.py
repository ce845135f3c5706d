"""Read settings strictly: environment over file over default, and every name that is not a setting refused."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

from aggregator.errors import StartError
from aggregator.settings.fields import element_of, field_at, group_of, leaves
from aggregator.settings.help import help_text

__all__ = ["SettingsError", "StrictSettings", "as_text", "help_text", "load", "read_secret"]

S = TypeVar("S", bound="StrictSettings")
_Path = tuple[str | int, ...]

# What Kubernetes puts into a pod's environment for a Service of the same name (service links).
_SERVICE_LINK = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)", re.ASCII
)


class SettingsError(StartError):
    """The settings do not hold; one line per problem."""


class StrictSettings(BaseSettings):
    """All settings of one process, immutable.

    Only `load` reads the environment: settings made in code are the same on every machine.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the constructor alone."""
        return (init_settings,)


def load(settings_type: type[S], *, prefix: str, env: Mapping[str, str], file: Path | None = None) -> S:
    """Settings from `env` (names `<prefix>GROUP__NAME`, complex values as JSON) over the YAML `file` over defaults.

    An empty value means "not set" where a setting may be empty. Raises SettingsError with a line per problem:
    an unknown name (with the nearest known one), a value that does not fit, a file that cannot be read.
    """
    problems: list[str] = []
    values = _read_file(file) if file is not None else {}
    names = _env_names(settings_type, prefix, env)
    for path in sorted(names, key=len):
        try:
            _put(values, path, _parsed(settings_type, path, env[names[path]]))
        except ValueError:
            problems.append(f"{names[path]}: not valid JSON")
        except RecursionError:
            problems.append(f"{names[path]}: not valid JSON: nested too deep")
    for name in [name for name in values if name.startswith("_")]:
        del values[name]  # BaseSettings would take it for an option of its own
        problems.append(f"{next((names[path] for path in names if path[0] == name), file)}: {name} is not a setting")
    try:
        settings = settings_type(**values)
    except ValidationError as error:
        spell = _Speller(settings_type, prefix, names, file)
        problems += [line for detail in error.errors() for line in spell.lines(detail)]
    else:
        if not problems:
            return settings
    raise SettingsError("\n".join(dict.fromkeys(problems)))


def read_secret(value: SecretStr, file: Path | None) -> str:
    """The secret itself: from `file` where one is named (its last line break is not part of it), else `value`."""
    if file is None:
        return value.get_secret_value()
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the secret file {file} cannot be read: {_reason(error)}") from error


def as_text(settings: BaseModel) -> str:
    """The settings in force as YAML, secrets masked."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{file}: {_reason(error)}") from error
    except Exception as error:  # noqa: BLE001 - PyYAML lets through what a date in month 13 raises, or a thousand brackets
        raise SettingsError(f"{file}: it holds a value that YAML does not take: {type(error).__name__}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(f"{file}: settings are a mapping of names to values")
    return content


def _reason(error: Exception) -> str:
    """What went wrong, without the content that it went wrong at: that may be a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"


def _env_names(settings_type: type[BaseModel], prefix: str, env: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    names: dict[tuple[str, ...], str] = {}
    for name in env:
        if not name.upper().startswith(prefix):
            continue
        rest = name[len(prefix) :]
        path = tuple(rest.lower().split("__"))
        if field_at(settings_type, path) is None and _SERVICE_LINK.fullmatch(rest):
            continue
        names[path] = name
    return names


def _parsed(settings_type: type[BaseModel], path: tuple[str, ...], text: str) -> Any:
    field = field_at(settings_type, path)
    if field is None:
        return text  # left for the validation to refuse
    alternatives = _alternatives(field.annotation)
    if not text and type(None) in alternatives:
        return None
    return json.loads(text) if any(_is_complex(alternative) for alternative in alternatives) else text


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _is_complex(annotation: Any) -> bool:
    return group_of(annotation) is not None or get_origin(annotation) not in (None, Literal)


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set one value in nested mappings; a group given as a whole is merged into what is there."""
    *groups, name = path
    for group in groups:
        inner = values.get(group)
        values[group] = values = dict(inner) if isinstance(inner, dict) else {}
    old = values.get(name)
    values[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class _Speller:
    """Say what is wrong in the words of whoever wrote it: the environment's names, or the file's keys."""

    settings_type: type[BaseModel]
    prefix: str
    names: Mapping[tuple[str, ...], str]
    file: Path | None

    def lines(self, detail: ErrorDetails) -> Iterator[str]:
        """One problem of the validation, a line for each name that brings it about."""
        loc = detail["loc"]
        unknown = detail["type"] == "extra_forbidden"
        below = [name for path, name in self.names.items() if path[: len(loc)] == loc]
        above = [name for path, name in self.names.items() if path == loc[: len(path)]]
        key = ".".join(str(part) for part in loc)
        if unknown and below:
            yield from (f"{name} is not a setting{self._nearest_env(name)}" for name in below)
        elif unknown:
            yield f"{above[0] if above else self.file}: {key} is not a setting{self._nearest_key(loc)}"
        elif below:
            yield from (f"{name}: {self._complaint(detail)}" for name in below)
        else:
            yield f"{above[0] if above else self.file}: {key}: {self._complaint(detail)}"

    def _complaint(self, detail: ErrorDetails) -> str:
        field = field_at(self.settings_type, detail["loc"])
        given = detail["input"]
        secret = field is None or field.annotation is SecretStr or not isinstance(given, (str, int, float))
        return detail["msg"] if secret else f"{detail['msg']}, not {given!r}"

    def _nearest_env(self, name: str) -> str:
        known = [leaf.env_name("") for leaf in leaves(self.settings_type)]  # all have the prefix: it tells nothing
        return _suggestion(name[len(self.prefix) :].upper(), known, self.prefix)

    def _nearest_key(self, loc: _Path) -> str:
        parent = field_at(self.settings_type, loc[:-1])
        annotation = parent.annotation if parent is not None else self.settings_type
        model = group_of(annotation) or element_of(annotation) or self.settings_type
        return _suggestion(str(loc[-1]), list(model.model_fields))


def _suggestion(name: str, known: Sequence[str], prefix: str = "") -> str:
    nearest = get_close_matches(name, known, n=1, cutoff=0.5)
    return f": did you mean {prefix}{nearest[0]}?" if nearest else f"; --help lists all {len(known)} there are"
