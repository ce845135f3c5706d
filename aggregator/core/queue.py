"""Hold the entries of one model until they are packed: by class, fairly between tenants, by deadline, by arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from aggregator.core.fairness import FairQueue
from aggregator.core.query import Entry, Priority, Query

_STALE_PLACES_KEPT = 4096


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What the queue is told: `max_wait_s` per class until an entry is aged, and whether equal inputs share."""

    max_wait_s: tuple[float, float, float] = (0.1, 0.5, 5.0)
    coalesce: bool = True


class ClassQueue:
    """One priority class: entries passed over by an earlier batch first, then the fair order."""

    def __init__(self, max_wait_s: float) -> None:
        self.fair = FairQueue()
        self.arrivals: deque[tuple[int, Entry]] = deque()
        self.max_wait_s = max_wait_s
        self.tokens = 0
        self.entries = 0
        self._passed: deque[tuple[int, Entry]] = deque()

    def pop(self) -> Entry | None:
        """The entry owed next."""
        while self._passed:
            ticket, entry = self._passed.popleft()
            if entry.ticket == ticket:
                return entry
        return self.fair.pop()

    def put_back(self, entries: Sequence[Entry]) -> None:
        """Return entries that were popped and not taken, to open the next batch in the same order."""
        self._passed.extendleft((entry.ticket, entry) for entry in reversed(entries))

    def oldest(self) -> Entry | None:
        """The entry that arrived first."""
        arrivals = self.arrivals
        while arrivals:
            ticket, entry = arrivals[0]
            if entry.ticket == ticket:
                return entry
            arrivals.popleft()
        return None

    def drop_stale(self) -> None:
        """Rebuild once most places are no longer valid, so that memory follows what waits."""
        if len(self.arrivals) > 2 * self.entries + _STALE_PLACES_KEPT:
            self.arrivals = deque(place for place in self.arrivals if place[1].ticket == place[0])
            self.fair.rebuild()


class TokenQueue:
    """Entries waiting for a batch, counted in tokens.

    Every query put in leaves exactly once: taken with its entry by `packing.pack`, by `expire`, or by `cancel`.
    Costs: O(log n) per entry, nothing is copied.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self.classes = tuple(ClassQueue(wait_s) for wait_s in policy.max_wait_s)
        self.coalesced = 0
        self._coalesce = policy.coalesce
        self._by_ids: dict[bytes, Entry] = {}
        self._deadlines: list[tuple[float, int, Query, Entry]] = []
        self._tickets = count(1)
        self._urged: deque[tuple[int, Entry]] = deque()

    @property
    def tokens(self) -> int:
        """Tokens waiting, all classes."""
        first, second, third = self.classes
        return first.tokens + second.tokens + third.tokens

    def __len__(self) -> int:
        """Entries waiting, all classes."""
        return sum(waiting.entries for waiting in self.classes)

    def put(self, query: Query, token_ids: bytes, token_count: int) -> Entry:
        """Queue an input; an equal one that waits already is shared."""
        entry = self._by_ids.get(token_ids) if self._coalesce else None
        if entry is not None:
            self._join(entry, query)
        else:
            entry = Entry(
                token_ids, token_count, [query], query.tenant, query.priority, query.deadline_s, query.enqueued_s
            )
            if self._coalesce:
                self._by_ids[token_ids] = entry
            self._place(entry)
        if query.deadline_s != inf:
            heappush(self._deadlines, (query.deadline_s, next(self._tickets), query, entry))
        return entry

    def cancel(self, query: Query, entry: Entry) -> bool:
        """Take a query out that nobody waits for any more; False when it was settled or is under way already."""
        if query.done:
            return False
        query.done = True
        if entry.ticket:
            self._rerank(entry)
            return True
        return False

    def expire(self, now_s: float) -> list[Query]:
        """Take out the queries whose deadline has passed; they never reach an engine."""
        expired: list[Query] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_s:
            _, _, query, entry = heappop(deadlines)
            if not query.done and entry.ticket:
                query.done = True
                expired.append(query)
                self._rerank(entry)
        if len(deadlines) > 2 * len(self) + _STALE_PLACES_KEPT:
            self._deadlines = [item for item in deadlines if not item[2].done and item[3].ticket]
            heapify(self._deadlines)
        return expired

    def next_deadline_s(self) -> float:
        """When `expire` has something to do next; `inf` when no deadline waits."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][2].done or not deadlines[0][3].ticket):
            heappop(deadlines)
        return deadlines[0][0] if deadlines else inf

    def urge(self, entry: Entry) -> None:
        """Treat an entry as aged from now on: it holds its partition's watermark back."""
        if entry.ticket:
            self._urged.append((entry.ticket, entry))

    def aged(self, now_s: float) -> Entry | None:
        """The entry that has been aged longest: urged ones first, then by arrival; it stays where it is."""
        while self._urged:
            ticket, entry = self._urged[0]
            if entry.ticket == ticket:
                return entry
            self._urged.popleft()
        found: Entry | None = None
        for waiting in self.classes:
            entry = waiting.oldest()
            if entry is None or now_s - entry.enqueued_s <= waiting.max_wait_s:
                continue
            if found is None or entry.enqueued_s < found.enqueued_s:
                found = entry
        return found

    def oldest_wait_s(self, now_s: float) -> float:
        """Age of the entry that has waited longest; 0 when none waits."""
        ages = [now_s - entry.enqueued_s for waiting in self.classes if (entry := waiting.oldest()) is not None]
        return max(ages, default=0.0)

    def take(self, entry: Entry) -> None:
        """Remove an entry that goes into a batch; its places in the queue are no longer valid."""
        assert entry.ticket, "An entry was taken twice. This is a bug."
        entry.ticket = 0
        waiting = self.classes[entry.priority]
        waiting.tokens -= entry.token_count
        waiting.entries -= 1
        if self._coalesce:
            del self._by_ids[entry.token_ids]
        waiting.drop_stale()

    def entries(self) -> Iterator[Entry]:
        """Every waiting entry, in no order; for rare sweeps."""
        for waiting in self.classes:
            yield from (entry for ticket, entry in waiting.arrivals if entry.ticket == ticket)

    def cancel_where(self, gone: Callable[[Query], bool]) -> list[Query]:
        """Cancel every waiting query for which `gone` holds; for rare sweeps, such as a revoked partition."""
        found = [
            (query, entry)
            for entry in list(self.entries())
            for query in entry.waiters
            if not query.done and gone(query)
        ]
        return [query for query, entry in found if self.cancel(query, entry)]

    def _join(self, entry: Entry, query: Query) -> None:
        entry.waiters.append(query)
        self.coalesced += 1
        self.classes[query.priority].fair.charge(query.tenant, entry.token_count)
        if query.priority < entry.priority or query.deadline_s < entry.deadline_s:
            self._move(entry, min(query.priority, entry.priority), min(query.deadline_s, entry.deadline_s), query)

    def _rerank(self, entry: Entry) -> None:
        """A waiter left: the entry goes with the last one, else its rank is that of those who still wait."""
        alive = [query for query in entry.waiters if not query.done]
        if not alive:
            self.take(entry)
            return
        priority = min(query.priority for query in alive)
        deadline_s = min(query.deadline_s for query in alive)
        if (priority, deadline_s) != (entry.priority, entry.deadline_s):
            self._move(entry, priority, deadline_s, min(alive, key=lambda query: query.priority))

    def _move(self, entry: Entry, priority: Priority, deadline_s: float, best: Query) -> None:
        waiting = self.classes[entry.priority]
        waiting.tokens -= entry.token_count
        waiting.entries -= 1
        entry.priority, entry.deadline_s, entry.tenant = priority, deadline_s, best.tenant
        self._place(entry)

    def _place(self, entry: Entry) -> None:
        entry.ticket = next(self._tickets)
        waiting = self.classes[entry.priority]
        waiting.tokens += entry.token_count
        waiting.entries += 1
        waiting.arrivals.append((entry.ticket, entry))
        waiting.fair.push(entry)
