"""A decoder that a fuzzer must find the faults of, so that it is known to find any."""

from __future__ import annotations

import json

from tests.fuzz.target import Target


def check(data: bytes) -> None:
    """Believes that whatever is JSON and not a list is an object."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, list):
        document.keys()


TARGETS = {"broken": Target("broken", check, lambda: [b"{}", b"[1, 2]"], ())}
