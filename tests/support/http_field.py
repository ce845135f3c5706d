"""A field of a body over HTTP, for the page that says what becomes of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

TEXTS = ["who wrote hamlet", "rain in spain"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field with a value as its API's clients send it, and what is to be known of it here."""

    name: str
    value: Any
    note: str = ""


Form = tuple[str, str, dict[str, Any], list[Field]]
"""Whose clients send it, its path, the least body, and fields to add to that."""
_REMEDY = re.compile(r"expected|send|leave it out|says it|did you mean|use |set |put it|takes it|pass|cuts|gives|needs")
"""Words that say what to do instead; each refusal has some of them."""


def refusal(error: dict[str, Any], field: Field) -> str:
    """Its message, which names the field as it was sent, and what to do."""
    assert str(error["param"]).startswith(field.name), error
    assert field.name in error["message"], error
    assert _REMEDY.search(error["message"]), error
    return str(error["message"])


def section(name: str, path: str, fields: Sequence[Field], found: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The lines of a form's table."""
    yield from (f"## {name}, `POST {path}`\n", "| field | value | | |", "|---|---|---|---|")
    for field, (becomes, note) in zip(fields, found, strict=True):
        yield f"| `{field.name}` | `{json.dumps(field.value)}` | {becomes} | {note} |"
    yield ""
