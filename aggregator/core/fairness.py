"""Share one priority class between tenants: start-time fair queueing on tokens, earliest deadline within a tenant.

After Goyal, Vin and Cheng, "Start-time Fair Queueing" (SIGCOMM 1996): a tenant's head carries the start tag
max(virtual time, the finish tag of what that tenant took last); the smallest start tag is served next.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from aggregator.core.query import Entry

_IDLE_FLOWS_KEPT = 1024


class _Flow:
    """One tenant's waiting entries: those with a deadline by deadline, then the rest by arrival."""

    __slots__ = ("active", "dated", "finish", "undated")

    def __init__(self) -> None:
        self.dated: list[tuple[float, int, Entry]] = []
        self.undated: deque[tuple[int, Entry]] = deque()
        self.finish = 0.0
        self.active = False

    def push(self, entry: Entry) -> None:
        if entry.deadline_s == inf:
            self.undated.append((entry.ticket, entry))
        else:
            heappush(self.dated, (entry.deadline_s, entry.ticket, entry))

    def pop(self) -> Entry | None:
        """The next entry whose place here is still valid."""
        dated, undated = self.dated, self.undated
        while dated:
            _, ticket, entry = heappop(dated)
            if entry.ticket == ticket:
                return entry
        while undated:
            ticket, entry = undated.popleft()
            if entry.ticket == ticket:
                return entry
        return None


class FairQueue:
    """The waiting entries of one priority class, in the order in which they are owed service."""

    def __init__(self) -> None:
        self._flows: dict[str, _Flow] = {}
        self._heads: list[tuple[float, int, _Flow]] = []
        self._virtual_time = 0.0
        self._order = 0

    def push(self, entry: Entry) -> None:
        """Add an entry to its tenant's flow, under the entry's present ticket."""
        flow = self._flow(entry.tenant)
        flow.push(entry)
        if not flow.active:
            flow.active = True
            self._order += 1
            heappush(self._heads, (max(self._virtual_time, flow.finish), self._order, flow))

    def charge(self, tenant: str, token_count: int) -> None:
        """Count tokens that a tenant got through somebody else's entry (a coalesced input)."""
        flow = self._flow(tenant)
        flow.finish = max(flow.finish, self._virtual_time) + token_count

    def pop(self) -> Entry | None:
        """Take the entry owed next, and charge its tenant; None when nothing waits."""
        heads = self._heads
        while heads:
            start, _, flow = heads[0]
            entry = flow.pop()
            if entry is None:
                heappop(heads)
                flow.active = False
                continue
            self._virtual_time = max(self._virtual_time, start)
            # A charge may have moved the finish tag past this start: the tenant then waits its turn longer.
            flow.finish = max(flow.finish, start) + entry.token_count
            self._order += 1
            heapreplace(heads, (flow.finish, self._order, flow))
            return entry
        self._start_level()
        return None

    def _start_level(self) -> None:
        """Nothing waits: the next busy period starts without debts."""
        self._flows.clear()
        self._virtual_time = 0.0

    def _flow(self, tenant: str) -> _Flow:
        flow = self._flows.get(tenant)
        if flow is None:
            if len(self._flows) >= len(self._heads) + _IDLE_FLOWS_KEPT:
                self._forget_idle_flows()
            flow = self._flows[tenant] = _Flow()
        return flow

    def _forget_idle_flows(self) -> None:
        """Drop flows that wait for nothing; one that owes service past the virtual time keeps its debt."""
        now = self._virtual_time
        self._flows = {name: flow for name, flow in self._flows.items() if flow.active or flow.finish > now}

    def rebuild(self) -> None:
        """Drop the places that are no longer valid."""
        for flow in self._flows.values():
            flow.dated = [place for place in flow.dated if place[2].ticket == place[1]]
            heapify(flow.dated)
            flow.undated = deque(place for place in flow.undated if place[1].ticket == place[0])
