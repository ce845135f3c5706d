"""Share one priority class between tenants: start-time fair queueing on tokens, earliest deadline within a tenant.

After Goyal, Vin and Cheng, "Start-time Fair Queueing" (SIGCOMM 1996): a tenant's next query has the start tag
max(virtual time, finish tag of the tenant's last query). The smallest start tag is served next.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from aggregator.scheduler.work_item import ByDeadline, Query


class _Flow:
    """One tenant's queries: those with a deadline by deadline, then the rest by arrival."""

    __slots__ = ("dated", "finish", "tenant", "undated")

    def __init__(self, tenant: str, finish: int) -> None:
        self.tenant = tenant
        self.finish = finish
        self.dated: list[ByDeadline] = []
        self.undated: deque[Query] = deque()


class FairQueue:
    """The queries of one priority class, in the order of service; those that no longer wait are dropped late."""

    def __init__(self) -> None:
        # Each flow has one head: (start tag of its next query, order, flow). Tags count tokens.
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
            if flow.finish > start:  # charged since then: its turn comes later
                heapreplace(heads, (flow.finish, order, flow))
                continue
            dated, undated = flow.dated, flow.undated
            while dated or undated:
                query = heappop(dated)[2] if dated else undated.popleft()
                item = query.item
                if item is not None and item.queued:
                    self._virtual_time = start
                    self._order = order = self._order + 1
                    flow.finish = finish = start + item.token_count
                    heapreplace(heads, (finish, order, flow))
                    return query
            heappop(heads)
            del self._flows[flow.tenant]
        self._virtual_time = 0
        return None

    def drop_invalid(self) -> None:
        """Drop queries that no longer wait, and tenants without queries that are not ahead of the virtual time."""
        for flow in self._flows.values():
            flow.dated = [dated for dated in flow.dated if dated[2].waits]
            heapify(flow.dated)
            flow.undated = deque(query for query in flow.undated if query.waits)
        self._heads = [
            head for head in self._heads if head[2].dated or head[2].undated or head[2].finish > self._virtual_time
        ]
        heapify(self._heads)
        self._flows = {flow.tenant: flow for _, _, flow in self._heads}

    def _open(self, tenant: str) -> _Flow:
        flow = self._flows[tenant] = _Flow(tenant, self._virtual_time)
        self._order += 1
        heappush(self._heads, (self._virtual_time, self._order, flow))
        return flow
