"""One input on its way to a vector, and what the queue needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any


class Priority(IntEnum):
    """Classes in order of rank: a lower number is served first."""

    INTERACTIVE = 0
    DEFAULT = 1
    BACKGROUND = 2


class Source(StrEnum):
    """Where a request came from; bounds and metrics are kept apart by it."""

    KAFKA = "kafka"
    GRPC = "grpc"


class QueryState(IntEnum):
    """Where a query stands; it only ever moves to a higher number, or back to WAITING after a failed batch."""

    WAITING = 0
    TAKEN = 1
    DONE = 2


@dataclass(slots=True, eq=False)
class Query:
    """One input of a request: token ids in, one vector out.

    `token_ids` are little-endian int32, special tokens included. Times are monotonic seconds. A query may
    lead followers: identical inputs that wait for the same vector (each with its own deadline and owner).
    """

    token_ids: bytes
    token_count: int
    priority: Priority
    source: Source
    tenant: str
    enqueued_s: float
    deadline_s: float
    owner: Any
    index: int = 0
    state: QueryState = QueryState.WAITING
    cancelled: bool = False
    followers: list[Query] = field(default_factory=list)
