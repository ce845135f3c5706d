"""One input in the queue (`Query`), and the computation that gives it a vector (`WorkItem`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Priority(IntEnum):
    """Classes in order of rank: a lower number is served first."""

    INTERACTIVE = 0
    DEFAULT = 1
    BACKGROUND = 2


class Task(StrEnum):
    """The work that a request asks for and a model server does; a server may do both in the same engine steps."""

    EMBED = "embed"
    GENERATE = "generate"
    SCORE = "score"


@dataclass(slots=True, eq=False)
class Query:
    """One input of a request (`owner`) that waits for its vector: what `item` computes, None before and afterwards.

    Times are monotonic seconds; a deadline of `inf` means none. `start_tag`: of its turn among tenants, if it had one.
    """

    owner: object
    index: int
    priority: Priority
    tenant: str
    enqueued_s: float
    deadline_s: float
    item: WorkItem | None = None
    start_tag: int = 0

    @property
    def done(self) -> bool:
        return self.item is None

    @property
    def waits(self) -> bool:
        """Whether it is queued. The queue keeps it in several orders, and removes it from all of them together."""
        return self.item is not None and self.item.queued


@dataclass(slots=True, eq=False)
class WorkItem:
    """One computation: token ids in (little-endian int32, special tokens included), one vector out.

    Where a model tells the texts of a pair apart, one more int32 after the ids is the place at which the second begins:
    so equal bytes are equal computations. Identical inputs share one item as its waiters. While it is `queued`, every
    waiter is alive, and `priority` is the most urgent class among them.
    """

    token_ids: bytes
    token_count: int
    waiters: list[Query]
    priority: Priority
    queued: bool = False

    @property
    def alive(self) -> bool:
        return any(query.item is not None for query in self.waiters)


ByDeadline = tuple[float, int, Query]
"""A query in a heap: its deadline (seconds), its arrival number, the query."""
