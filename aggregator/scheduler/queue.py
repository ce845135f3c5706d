"""Hold the work items of one model until they are packed: by class, fairly between tenants, by deadline, by arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from aggregator.scheduler.work_item import ByDeadline, Priority, Query, WorkItem, key_of

_PRIORITIES = tuple(Priority)  # to walk an enum costs ten times as much
_PUTS_PER_SWEEP = 4096  # a sweep of a queue this long takes a third of a millisecond
_RECENT_S = 10.0
"""A class with an arrival within this time is in use: steps stay short for its next queries."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """`max_wait_s`: the time until an item of each class is aged. `coalesce`: whether equal inputs share one item."""

    max_wait_s: tuple[float, float, float] = (0.1, 0.5, 5.0)
    coalesce: bool = True


class _Flow:
    """One tenant's queries: those with a deadline by deadline, then the rest by arrival. `head`: of its valid head."""

    __slots__ = ("dated", "finish", "head", "tenant", "undated")

    def __init__(self, tenant: str, finish: int) -> None:
        self.tenant = tenant
        self.finish = finish
        self.head = 0
        self.dated: list[ByDeadline] = []
        self.undated: deque[Query] = deque()


class FairQueue:
    """The queries of one priority class in the order of service: fairly between tenants, by deadline within a tenant.

    Start-time fair queueing on tokens (Goyal, Vin and Cheng, SIGCOMM 1996): a tenant's next query has the start tag
    max(virtual time, finish tag of the tenant's last query). The smallest start tag is served next. Queries that no
    longer wait are dropped late.
    """

    def __init__(self) -> None:
        # Each flow has one valid head: (start tag of its next query, order, flow). Tags count tokens.
        self._flows: dict[str, _Flow] = {}
        self._heads: list[tuple[int, int, _Flow]] = []
        self._virtual_time = 0
        self._order = 0

    def __len__(self) -> int:
        """The number of queries and tenants in memory, including queries that no longer wait."""
        return len(self._flows) + sum(len(flow.dated) + len(flow.undated) for flow in self._flows.values())

    def push(self, query: Query) -> None:
        flow = self._flows.get(query.tenant) or self._open(query.tenant)
        if query.deadline_s == inf:
            flow.undated.append(query)
        else:
            self._order += 1
            heappush(flow.dated, (query.deadline_s, self._order, query))

    def charge(self, tenant: str, token_count: int) -> None:
        """Count tokens that a tenant got out of turn: as aged, or with another tenant's query (a coalesced input)."""
        flow = self._flows.get(tenant) or self._open(tenant)
        flow.finish += token_count

    def pop(self) -> Query | None:
        heads = self._heads
        while heads:
            start, order, flow = heads[0]
            if order != flow.head:  # another head took its place when queries were put back
                heappop(heads)
                continue
            if flow.finish > start:  # charged since then: its turn comes later
                heapreplace(heads, (flow.finish, order, flow))
                continue
            dated, undated = flow.dated, flow.undated
            while dated or undated:
                query = heappop(dated)[2] if dated else undated.popleft()
                item = query.item
                if item is not None and item.queued:
                    self._virtual_time = query.start_tag = start
                    self._order = flow.head = self._order + 1
                    flow.finish = finish = start + item.token_count
                    heapreplace(heads, (finish, flow.head, flow))
                    return query
            heappop(heads)
            del self._flows[flow.tenant]
        self._virtual_time = 0
        return None

    def put_back(self, queries: Sequence[Query]) -> None:
        """Return the queries that were popped last, in their order: their tenants are where they were before."""
        touched: dict[_Flow, None] = {}
        for query in reversed(queries):
            token_count = query.item.token_count if query.item is not None else 0
            if (flow := self._flows.get(query.tenant)) is None:
                flow = self._open(query.tenant)
                flow.finish = query.start_tag + token_count
            flow.finish -= token_count
            touched[flow] = None
            if query.deadline_s == inf:
                flow.undated.appendleft(query)
            else:
                self._order += 1
                heappush(flow.dated, (query.deadline_s, -self._order, query))
            self._virtual_time = query.start_tag
        for flow in touched:
            self._order = flow.head = self._order + 1
            heappush(self._heads, (flow.finish, flow.head, flow))

    def drop_invalid(self) -> None:
        """Drop queries that no longer wait, and tenants without queries that are not ahead of the virtual time."""
        for flow in self._flows.values():
            flow.dated = [dated for dated in flow.dated if dated[2].waits]
            heapify(flow.dated)
            flow.undated = deque(query for query in flow.undated if query.waits)
        self._heads = [
            head
            for head in self._heads
            if head[1] == head[2].head and (head[2].dated or head[2].undated or head[2].finish > self._virtual_time)
        ]
        heapify(self._heads)
        self._flows = {flow.tenant: flow for _, _, flow in self._heads}

    def _open(self, tenant: str) -> _Flow:
        flow = self._flows[tenant] = _Flow(tenant, self._virtual_time)
        self._order = flow.head = self._order + 1
        heappush(self._heads, (self._virtual_time, flow.head, flow))
        return flow


class PriorityQueue:
    """One priority class: a query that an earlier batch skipped comes first, then the fair order.

    `tokens` and `items` count the items whose most urgent waiter is of this class.
    """

    def __init__(self, max_wait_s: float) -> None:
        self.fair = FairQueue()
        self.max_wait_s = max_wait_s
        self.tokens = 0
        self.items = 0
        self.in_use_until_s = -inf
        self._arrivals: deque[Query] = deque()
        self._skipped: deque[Query] = deque()
        self._sweep_at = _PUTS_PER_SWEEP

    def push(self, query: Query) -> None:
        self.in_use_until_s = query.enqueued_s + _RECENT_S
        self._arrivals.append(query)
        self.fair.push(query)

    def pop(self) -> Query | None:
        return (self.pop_skipped() if self._skipped else None) or self.fair.pop()

    def pop_skipped(self) -> Query | None:
        skipped = self._skipped
        while skipped:
            query = skipped.popleft()
            if query.waits:
                return query
        return None

    def put_back(self, queries: Sequence[Query]) -> None:
        """Return queries that were popped and not taken: the next batch begins with the first, the rest wait in turn.

        Were all of them first, a tenant with many queries would get ahead of others by those that did not fit.
        """
        self._skipped.extendleft(queries[:1])
        self.fair.put_back(queries[1:])

    def arrivals(self) -> Iterator[Query]:
        return (query for query in self._arrivals if query.waits)

    def oldest(self) -> Query | None:
        arrivals = self._arrivals
        while arrivals:
            query = arrivals[0]
            if query.waits:
                return query
            arrivals.popleft()
        return None

    def sweep(self) -> None:
        """Drop queries that no longer wait once they may be the majority: memory follows the number that wait."""
        if len(self._arrivals) + len(self.fair) > self._sweep_at:
            self._arrivals = deque(self.arrivals())
            self.fair.drop_invalid()
            self._sweep_at = 2 * (len(self._arrivals) + len(self.fair)) + _PUTS_PER_SWEEP


class TokenQueue:
    """Items waiting for a batch, counted in tokens.

    Every query leaves exactly once: with its item by `Packer.pack`, by `expire`, or by `cancel`. An item has the rank
    of its most urgent waiter, because every waiter is in the queue and the first that is popped takes the item.
    Costs: O(log n) per query; nothing is copied.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self.classes = tuple(PriorityQueue(wait_s) for wait_s in policy.max_wait_s)
        self.coalesced = 0
        self._coalesce = policy.coalesce
        self._by_key: dict[bytes | tuple[bytes, int], WorkItem] = {}
        self._deadlines: list[ByDeadline] = []
        self._order = 0
        self._sweep_at = _PUTS_PER_SWEEP

    @property
    def tokens(self) -> int:
        first, second, third = self.classes
        return first.tokens + second.tokens + third.tokens

    def backlog(self, now_s: float, others: Priority = Priority.BACKGROUND) -> tuple[int, float]:
        """Tokens of the most urgent class in use that one batch may hold, and the longest time of its step (seconds).

        These are all waiting tokens of the class; of the interactive class half, so that the other half is packed while
        these run. A step longer than the class may wait would make the queries behind it late. `others`: the most
        urgent class that the batch's server gets from any aggregator.
        """
        priority = self.most_urgent(now_s)
        if others < priority:
            return 0, self.classes[others].max_wait_s
        waiting = self.classes[priority]
        return waiting.tokens // (2 if priority is Priority.INTERACTIVE else 1), waiting.max_wait_s

    def most_urgent(self, now_s: float) -> Priority:
        """The most urgent class in use: that waits, or came lately; background if there is none."""
        for priority, each in zip(_PRIORITIES, self.classes, strict=True):
            if each.items or now_s < each.in_use_until_s:
                return priority
        return Priority.BACKGROUND

    @property
    def next_priority(self) -> Priority:
        """The most urgent class that waits; background when nothing does."""
        for priority, each in zip(_PRIORITIES, self.classes, strict=True):
            if each.items:
                return priority
        return Priority.BACKGROUND

    def next_ids(self) -> bytes:
        """Token ids of the item that has waited longest in the most urgent class; empty when nothing waits."""
        oldest = (waiting.oldest() for waiting in self.classes)
        return next((query.item.token_ids for query in oldest if query is not None and query.item is not None), b"")

    def __len__(self) -> int:
        first, second, third = self.classes
        return first.items + second.items + third.items

    def put(self, query: Query, token_ids: bytes, token_count: int) -> WorkItem:
        """Queue an input; if an equal one waits already, they share its item."""
        waiting = self.classes[query.priority]
        key = key_of(token_ids, token_count) if self._coalesce else b""
        item = self._by_key.get(key)
        if item is None:
            item = WorkItem(token_ids, token_count, [query], query.priority, True)
            if self._coalesce:
                self._by_key[key] = item
            waiting.tokens += token_count
            waiting.items += 1
        else:
            item.waiters.append(query)
            self.coalesced += 1
            if query.priority < item.priority:
                self._reclass(item, query.priority)
        query.item = item
        self._order += 1
        waiting.push(query)
        if query.deadline_s != inf:
            heappush(self._deadlines, (query.deadline_s, self._order, query))
        if not self._order % _PUTS_PER_SWEEP:
            self._sweep()
        return item

    def cancel(self, queries: Iterable[Query]) -> None:
        """Remove queries whose callers are gone; those in flight get no result. Costs one look at each waiter."""
        touched: dict[WorkItem, None] = {}
        for query in queries:
            item, query.item = query.item, None
            if item is not None and item.queued:
                touched[item] = None
        for item in touched:
            item.waiters = [query for query in item.waiters if query.item is item]
            if not item.waiters:
                self._remove(item)
                continue
            priority = min(query.priority for query in item.waiters)
            if priority != item.priority:
                self._reclass(item, priority)

    def expire(self, now_s: float) -> list[Query]:
        """Remove the queries whose deadline has passed; they never reach an engine."""
        expired: list[Query] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_s:
            query = heappop(deadlines)[2]
            if query.waits:
                expired.append(query)
        self.cancel(expired)
        return expired

    def next_deadline_s(self) -> float:
        deadlines = self._deadlines
        while deadlines:
            deadline_s, _, query = deadlines[0]
            if query.waits:
                return deadline_s
            heappop(deadlines)
        return inf

    def aged(self, now_s: float) -> WorkItem | None:
        """The next aged item to pack, by arrival. It stays in the queue."""
        found: Query | None = None
        for waiting in self.classes:
            query = waiting.oldest()
            if (
                query is not None
                and now_s - query.enqueued_s > waiting.max_wait_s
                and (found is None or query.enqueued_s < found.enqueued_s)
            ):
                found = query
        return found.item if found is not None else None

    def take(self, item: WorkItem, query_in_turn: Query | None) -> None:
        """Remove an item that goes into a batch, in the turn of `query_in_turn` (None: out of turn).

        The tenants of all other waiters are charged here; the tenant of `query_in_turn` was charged when that was
        popped.
        """
        self._remove(item)
        for query in item.waiters:
            if query is not query_in_turn:
                self.classes[query.priority].fair.charge(query.tenant, item.token_count)

    def items(self) -> Iterator[WorkItem]:
        """Every waiting item, in no order; only for rare sweeps."""
        for waiting in self.classes:
            for query in waiting.arrivals():
                item = query.item
                if item is not None and item.waiters[0] is query:
                    yield item

    def _remove(self, item: WorkItem) -> None:
        assert item.queued, "An item left the queue twice. This is a bug."
        item.queued = False
        waiting = self.classes[item.priority]
        waiting.tokens -= item.token_count
        waiting.items -= 1
        if self._coalesce:
            del self._by_key[key_of(item.token_ids, item.token_count)]

    def _reclass(self, item: WorkItem, priority: Priority) -> None:
        for waiting, sign in ((self.classes[item.priority], -1), (self.classes[priority], 1)):
            waiting.tokens += sign * item.token_count
            waiting.items += sign
        item.priority = priority

    def _sweep(self) -> None:
        for waiting in self.classes:
            waiting.sweep()
        if len(self._deadlines) > self._sweep_at:
            self._deadlines = [dated for dated in self._deadlines if dated[2].waits]
            heapify(self._deadlines)
            self._sweep_at = 2 * len(self._deadlines) + _PUTS_PER_SWEEP
