"""A field of a body over HTTP, for the page that says what becomes of each."""

from __future__ import annotations

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
