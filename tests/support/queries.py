"""Queries to put in a queue, short to write."""

from __future__ import annotations

from array import array
from math import inf

from aggregator.scheduler.queue import TokenQueue
from aggregator.scheduler.work_item import Priority, Query, WorkItem


def query(
    priority: Priority = Priority.DEFAULT,
    *,
    tenant: str = "",
    at_s: float = 0.0,
    deadline_s: float = inf,
    index: int = 0,
) -> Query:
    """A query that arrives at `at_s`."""
    return Query(None, index, priority, tenant, at_s, deadline_s)


def work_item(token_ids: bytes, token_count: int, one: Query, *, queued: bool = False) -> WorkItem:
    """The item that a query waits for, as a queue makes it."""
    one.item = WorkItem(token_ids, token_count, [one], one.priority, queued)
    return one.item


def packed(*token_ids: int) -> bytes:
    """Token ids as they are queued and sent: int32, little endian."""
    return array("i", token_ids).tobytes()


class Filler:
    """Puts inputs of given lengths into a queue; each different from all others, unless ids are given."""

    def __init__(self, queue: TokenQueue) -> None:
        self.queue = queue
        self.put = 0

    def __call__(
        self,
        tokens: int,
        priority: Priority = Priority.DEFAULT,
        *,
        tenant: str = "",
        at_s: float = 0.0,
        deadline_s: float = inf,
        ids: bytes | None = None,
    ) -> tuple[Query, WorkItem]:
        """Put one input; returns its query and its item."""
        self.put += 1
        one = query(priority, tenant=tenant, at_s=at_s, deadline_s=deadline_s, index=self.put)
        return one, self.queue.put(one, packed(self.put) if ids is None else ids, tokens)
