"""List every setting for `--help`: its name in the environment, its type, its default and its meaning.

The command-line source of pydantic-settings lists none of these names and no keys of topics and models, and takes twice
the lines.
"""

from __future__ import annotations

import json
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from k8s.pod.setting_names import Leaf, element_of, env_name, group_of, leaves

_WIDTH = 110  # characters of a line
_BOUNDS = {Gt: (">", "gt"), Ge: ("≥", "ge"), Lt: ("<", "lt"), Le: ("≤", "le")}


def parser_of(program: str, does: str, settings_type: type[BaseModel], prefix: str, *, check: str) -> ArgumentParser:
    """The command line of a process that has settings; `check`: the help of --check; empty: no such option."""
    parser = ArgumentParser(prog=f"python -m {program}", description=does)
    add_settings(parser, settings_type, prefix, check=check)
    return parser


def add_settings(parser: ArgumentParser, settings_type: type[BaseModel], prefix: str, *, check: str) -> None:
    """Give a process's command, or a subcommand, its options, and a help that lists the settings."""
    parser.epilog = help_text(settings_type, prefix)
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings as YAML; the environment wins over it")
    if check:
        parser.add_argument("--check", action="store_true", help=check)
    parser.add_argument(
        "--show-settings", action="store_true", help="print the settings in force as YAML, secrets masked, and exit"
    )


def add_config(parser: ArgumentParser, meaning: str) -> None:
    """Give a subcommand `--config`, without a default, so that the same option before the command's name holds too."""
    parser.add_argument("--config", type=Path, default=SUPPRESS, metavar="FILE", help=meaning)


def help_text(settings_type: type[BaseModel], prefix: str) -> str:
    """Every setting, for `--help`: two lines or more each, groups apart."""
    lines = [
        fill(
            "Settings come from the environment, then from the file of --config (YAML: groups are mappings, names in"
            " lower case), then from these defaults. Lists and mappings are JSON in the environment.",
            _WIDTH,
        )
    ]
    group = None
    for leaf in leaves(settings_type):
        if leaf.path[:-1] != group:
            group = leaf.path[:-1]
            lines.append("")
        lines += _lines(env_name(prefix, leaf.path), leaf)
    return "\n".join(lines) + "\n"


def _lines(name: str, leaf: Leaf) -> Iterator[str]:
    yield f"{name}  {_described(leaf)}"
    if leaf.field.description:
        yield fill(leaf.field.description, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    element = element_of(leaf.field.annotation)
    for part in leaves(element) if element is not None else ():
        text = f"- {'.'.join(part.path)}  {_described(part)}  {part.field.description or ''}".rstrip()
        yield fill(text, _WIDTH, initial_indent="      ", subsequent_indent="        ")


def described(leaf: Leaf) -> tuple[str, str | None]:
    """The values that a setting takes, and its default as text; None where it must be given."""
    default = leaf.default
    return _type(leaf.field), None if default is PydanticUndefined else _default(default)


def _described(leaf: Leaf) -> str:
    kind, default = described(leaf)
    return f"<{kind}>  [{'required' if default is None else f'default {default}'}]"


def _type(field: FieldInfo) -> str:
    bounds = [
        f" {sign} {getattr(limit, attribute)}"
        for limit in field.metadata
        for kind, (sign, attribute) in _BOUNDS.items()
        if isinstance(limit, kind)
    ]
    return _type_name(field.annotation) + "".join(bounds)


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(str(argument) for argument in arguments)
    if origin in (tuple, list, frozenset, set):
        kinds = dict.fromkeys(_type_name(argument) for argument in arguments if argument is not Ellipsis)
        return f"JSON list of {', '.join(kinds)}"
    if hasattr(annotation, "__metadata__"):  # Annotated
        return _type_name(arguments[0])
    if type(None) in arguments:
        return " or ".join(_type_name(argument) for argument in arguments if argument is not type(None)) + " or empty"
    names = {str: "text", int: "integer", float: "number", bool: "true|false", SecretStr: "secret", Path: "path"}
    if group_of(annotation) is not None or origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(choice.value) for choice in annotation)
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(value: Any) -> str:
    if isinstance(value, SecretStr):
        return "none" if not value.get_secret_value() else "set"
    if value is None or value == "":
        return "empty"
    if isinstance(value, tuple) and all(isinstance(each, BaseModel) for each in value):  # only what is not a default
        value = [each.model_dump(exclude_defaults=True) for each in value]
    plain = to_jsonable_python(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
