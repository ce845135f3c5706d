"""One input in the queue (`Query`), and the computation that gives it a vector (`WorkItem`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Priority(IntEnum):
    """Classes in order of rank: a lower number is served first."""

    INTERACTIVE = 0
    DEFAULT = 1
    BACKGROUND = 2


@dataclass(slots=True, eq=False)
class Query:
    """One input of a request (`owner`) that waits for its vector.

    Times are monotonic seconds; a deadline of `inf` means none.
    """

    owner: object
    index: int
    priority: Priority
    tenant: str
    enqueued_s: float
    deadline_s: float
    done: bool = False


@dataclass(slots=True, eq=False)
class WorkItem:
    """One computation: token ids in (little-endian int32, special tokens included), one vector out.

    Identical inputs share one item as its waiters. While it is `queued`, every waiter is alive, and `priority` is the
    most urgent class among them.
    """

    token_ids: bytes
    token_count: int
    waiters: list[Query]
    priority: Priority
    queued: bool = False

    @property
    def alive(self) -> bool:
        """Whether any query still waits for the vector."""
        return any(not query.done for query in self.waiters)


QueueSlot = tuple[float, int, Query, WorkItem]
"""The position of one query in the queue: its deadline (seconds), its arrival number, the query, its item.

A slot is valid while its query is not done and its item is queued. Invalid slots stay until they are popped or swept.
"""
