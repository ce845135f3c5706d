"""A batch on its way from an aggregator to a model server and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Parcel:
    """One batch; `body` is the sender's own. Times are virtual seconds; it is `over` once it came back or failed."""

    sender: int
    pod: int
    body: Any
    token_count: int
    query_count: int
    token_budget: int
    max_step_tokens: int
    alone: bool
    timeout_s: float
    arrived_s: float = 0.0
    over: bool = False
