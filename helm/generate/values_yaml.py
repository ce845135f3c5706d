"""Write the chart's values.yaml: every value with its default and what it is for."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from helm.generate.values import ChartValues

_WIDTH = 110
_HEADER = """\
# Generated from helm/generate/values.py by `make chart`: change it there.
# Only kafka.bootstrapServers must be set. Groups called `config` take a process's settings by their own names, which
# docs/configuration.md lists.
"""


def values_yaml() -> str:
    """The whole file."""
    return _HEADER + "".join(f"{line}\n".lstrip(" ") if not line.strip() else f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    for name, field in ChartValues.model_fields.items():
        yield ""
        yield from _field(ChartValues(), name, field, 0)


def _field(values: BaseModel, name: str, field: FieldInfo, depth: int) -> Iterator[str]:
    indent = "  " * depth
    value = getattr(values, name)
    text = field.description or (value.__class__.__doc__ if isinstance(value, BaseModel) else "")
    yield from (f"{indent}# {line}" for line in wrap(text or "", _WIDTH - len(indent)))
    if isinstance(value, BaseModel):
        yield f"{indent}{field.alias}:"
        for inner, inner_field in type(value).model_fields.items():
            yield from _field(value, inner, inner_field, depth + 1)
    else:
        yield from (f"{indent}{line}" for line in _dumped({field.alias: plain(value)}))


def plain(value: Any) -> Any:
    """A value as YAML has it; of models in a list only what was said."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.model_dump(by_alias=True, exclude_unset=True) if isinstance(value, BaseModel) else value


def _dumped(value: Any) -> list[str]:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=_WIDTH).rstrip("\n").split("\n")
