"""One input on its way to a vector: the query that waits for it, and the entry that computes it."""

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
    """One input of a request, its `owner`, waiting for its vector.

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
class Entry:
    """One computation: token ids in (little-endian int32, special tokens included), one vector out.

    Identical inputs share one entry as its waiters. While it is `queued` all of them are alive, and `priority`
    is the best class among them.
    """

    token_ids: bytes
    token_count: int
    waiters: list[Query]
    priority: Priority
    queued: bool = False

    @property
    def alive(self) -> bool:
        """Whether anybody still waits for the vector."""
        return any(not query.done for query in self.waiters)


Place = tuple[float, int, Query, Entry]
"""Where one query stands in the queue: its deadline (seconds), its number in the order of arrival, itself, its entry.

A place is valid while its query is not done and its entry is queued; nobody searches for a place to remove it.
"""
