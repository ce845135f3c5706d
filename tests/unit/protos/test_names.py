"""Names in protos/ that every language's protoc takes."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

ROOT = Path(__file__).parents[3]
MODULES = sorted(str(file.relative_to(ROOT))[:-3].replace("/", ".") for file in (ROOT / "protos").rglob("*_pb2.py"))


def clashing(message: Descriptor) -> set[str]:
    """Fields of a message, or of those in it, that are one in a language that joins words: account_s and accounts."""
    joined = Counter(field.name.replace("_", "").lower() for field in message.fields)
    found = {field.full_name for field in message.fields if joined[field.name.replace("_", "").lower()] > 1}
    return found.union(*map(clashing, message.nested_types))


@pytest.mark.parametrize("module", MODULES)
def test_no_two_fields_of_a_message_are_one_in_camel_case(module: str) -> None:
    messages = importlib.import_module(module).DESCRIPTOR.message_types_by_name
    assert messages
    assert not set().union(*map(clashing, messages.values()))
