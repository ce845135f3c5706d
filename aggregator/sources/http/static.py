"""A response that is the same for every caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Static(NamedTuple):
    """A response to GET that needs no model and no right: what is in it is public."""

    body: bytes
    headers: Mapping[str, str]
