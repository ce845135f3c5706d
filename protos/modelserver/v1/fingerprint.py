"""Name a tokenizer by its files, so that an aggregator and a model server can compare theirs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

TOKENIZER_FILE = "tokenizer.json"
"""The file that must be among them: the fast tokenizer's whole definition."""


def tokenizer_fingerprint(files: Mapping[str, bytes]) -> str:
    """SHA-256, in hexadecimal, over the files in the order of their names: name, NUL, size, NUL, content."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
