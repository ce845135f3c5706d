"""Name a tokenizer by its files, so that who counts tokens and who embeds them can tell that they agree."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

TOKENIZER_FILE = "tokenizer.json"
"""The file that must be among them: the fast tokenizer's whole definition."""


def tokenizer_fingerprint(files: Mapping[str, bytes]) -> str:
    """SHA-256, in hexadecimal, over names and contents in the order of the names, each with its length before it."""
    digest = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()
