"""Hold the entries of one model until they are packed: by class, fairly between tenants, by deadline, by arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

from aggregator.scheduler.fairness import FairQueue
from aggregator.scheduler.work_item import Entry, Place, Priority, Query

_PUTS_PER_SWEEP = 4096
_RECENT_S = 10.0
"""A class of which something came within this time is in use: steps stay short for what is to come."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What the queue is told: `max_wait_s` per class until an entry is aged, and whether equal inputs share."""

    max_wait_s: tuple[float, float, float] = (0.1, 0.5, 5.0)
    coalesce: bool = True


class ClassQueue:
    """One priority class: places passed over by an earlier batch first, then the fair order.

    `tokens` and `entries` count the entries whose best waiter is of this class.
    """

    def __init__(self, max_wait_s: float) -> None:
        self.fair = FairQueue()
        self.max_wait_s = max_wait_s
        self.tokens = 0
        self.entries = 0
        self.in_use_until_s = -inf
        self._arrivals: deque[Place] = deque()
        self._passed: deque[Place] = deque()
        self._sweep_at = _PUTS_PER_SWEEP

    def push(self, place: Place) -> None:
        """Add a place."""
        self.in_use_until_s = place[2].enqueued_s + _RECENT_S
        self._arrivals.append(place)
        self.fair.push(place)

    def pop(self) -> Place | None:
        """Take the place owed next."""
        return self.pop_passed() or self.fair.pop()

    def pop_passed(self) -> Place | None:
        """Take the place at the head, if an earlier batch passed it over."""
        passed = self._passed
        while passed:
            place = passed.popleft()
            if place[3].queued and not place[2].done:
                return place
        return None

    def put_back(self, places: Sequence[Place]) -> None:
        """Return places that were popped and not taken, to open the next batch in the same order."""
        self._passed.extendleft(reversed(places))

    def arrivals(self) -> Iterator[Place]:
        """The valid places, in the order of arrival."""
        return (place for place in self._arrivals if place[3].queued and not place[2].done)

    def oldest(self) -> Query | None:
        """The waiting query that arrived first."""
        place = self.oldest_place()
        return place[2] if place is not None else None

    def oldest_place(self) -> Place | None:
        """Its place."""
        arrivals = self._arrivals
        while arrivals:
            place = arrivals[0]
            if place[3].queued and not place[2].done:
                return place
            arrivals.popleft()
        return None

    def sweep(self) -> None:
        """Forget places that are no longer valid once they may be the most, so that memory follows what waits."""
        if len(self._arrivals) + len(self.fair) > self._sweep_at:
            self._arrivals = deque(self.arrivals())
            self.fair.drop_invalid()
            self._sweep_at = 2 * (len(self._arrivals) + len(self.fair)) + _PUTS_PER_SWEEP


class TokenQueue:
    """Entries waiting for a batch, counted in tokens.

    Every query put in leaves exactly once: taken with its entry by `packing.pack`, by `expire`, or by `cancel`.
    An entry's rank is the best of its waiters', because each of them has a place of its own and the first place
    that is served takes the entry. Costs: O(log n) per query, nothing is copied.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self.classes = tuple(ClassQueue(wait_s) for wait_s in policy.max_wait_s)
        self.coalesced = 0
        self._coalesce = policy.coalesce
        self._by_ids: dict[bytes, Entry] = {}
        self._deadlines: list[Place] = []
        self._order = 0
        self._sweep_at = _PUTS_PER_SWEEP
        self._promoted: dict[Entry, None] = {}

    @property
    def tokens(self) -> int:
        """Tokens waiting, all classes."""
        first, second, third = self.classes
        return first.tokens + second.tokens + third.tokens

    def backlog(self, now_s: float) -> tuple[int, float]:
        """Tokens of the most urgent class in use that may go in one batch, and how long its step may take (seconds).

        They are all that wait; of interactive ones half, so that the other half is cut while these run. A step longer
        than its class may wait would make the ones behind it late.
        """
        for priority, waiting in zip(Priority, self.classes, strict=True):
            if waiting.entries or now_s < waiting.in_use_until_s:
                return waiting.tokens // (2 if priority is Priority.INTERACTIVE else 1), waiting.max_wait_s
        return 0, 0.0

    def next_ids(self) -> bytes:
        """Token ids of what has waited longest in the most urgent class; empty when nothing waits."""
        places = (waiting.oldest_place() for waiting in self.classes)
        return next((place[3].token_ids for place in places if place is not None), b"")

    def __len__(self) -> int:
        """Entries waiting, all classes."""
        first, second, third = self.classes
        return first.entries + second.entries + third.entries

    def put(self, query: Query, token_ids: bytes, token_count: int) -> Entry:
        """Queue an input; an equal one that waits already is shared."""
        waiting = self.classes[query.priority]
        entry = self._by_ids.get(token_ids)
        if entry is None:
            entry = Entry(token_ids, token_count, [query], query.priority, True)
            if self._coalesce:
                self._by_ids[token_ids] = entry
            waiting.tokens += token_count
            waiting.entries += 1
        else:
            entry.waiters.append(query)
            self.coalesced += 1
            if query.priority < entry.priority:
                self._reclass(entry, query.priority)
        self._order += 1
        place = (query.deadline_s, self._order, query, entry)
        waiting.push(place)
        if query.deadline_s != inf:
            heappush(self._deadlines, place)
        if not self._order % _PUTS_PER_SWEEP:
            self._sweep()
        return entry

    def cancel(self, query: Query, entry: Entry) -> bool:
        """Take a query out that nobody waits for any more; False when it was completed or is under way already."""
        if query.done:
            return False
        query.done = True
        if not entry.queued:
            return False
        entry.waiters.remove(query)
        if not entry.waiters:
            self._remove(entry)
        elif all(waiter.priority > entry.priority for waiter in entry.waiters):
            self._reclass(entry, min(waiter.priority for waiter in entry.waiters))
        return True

    def expire(self, now_s: float) -> list[Query]:
        """Take out the queries whose deadline has passed; they never reach an engine."""
        expired: list[Query] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_s:
            _, _, query, entry = heappop(deadlines)
            if entry.queued and self.cancel(query, entry):
                expired.append(query)
        return expired

    def next_deadline_s(self) -> float:
        """When `expire` has something to do next; `inf` when no deadline waits."""
        deadlines = self._deadlines
        while deadlines:
            deadline_s, _, query, entry = deadlines[0]
            if entry.queued and not query.done:
                return deadline_s
            heappop(deadlines)
        return inf

    def promote(self, entry: Entry) -> None:
        """Treat an entry as aged from now on: it holds its partition's committed offset back."""
        if entry.queued:
            self._promoted[entry] = None

    def aged(self, now_s: float) -> Entry | None:
        """The entry to be served as aged first: promoted ones, then by arrival; it stays where it is."""
        if self._promoted:
            return next(iter(self._promoted))
        found: Place | None = None
        for waiting in self.classes:
            place = waiting.oldest_place()
            if (
                place is not None
                and now_s - place[2].enqueued_s > waiting.max_wait_s
                and (found is None or place[2].enqueued_s < found[2].enqueued_s)
            ):
                found = place
        return found[3] if found is not None else None

    def oldest_wait_s(self, now_s: float) -> float:
        """Age of the query that has waited longest; 0 when none waits."""
        ages = [now_s - query.enqueued_s for waiting in self.classes if (query := waiting.oldest()) is not None]
        return max(ages, default=0.0)

    def take(self, entry: Entry, served: Query | None) -> None:
        """Remove an entry that goes into a batch, in the turn of `served` (None: out of turn).

        The tenants of all other waiters are charged here; that of `served` was when its place was popped.
        """
        self._remove(entry)
        for query in entry.waiters:
            if query is not served:
                self.classes[query.priority].fair.charge(query.tenant, entry.token_count)

    def entries(self) -> Iterator[Entry]:
        """Every waiting entry, in no order; for rare sweeps."""
        for waiting in self.classes:
            for _, _, query, entry in waiting.arrivals():
                if entry.waiters[0] is query:
                    yield entry

    def _remove(self, entry: Entry) -> None:
        assert entry.queued, "An entry left the queue twice. This is a bug."
        entry.queued = False
        waiting = self.classes[entry.priority]
        waiting.tokens -= entry.token_count
        waiting.entries -= 1
        if self._coalesce:
            del self._by_ids[entry.token_ids]
        if self._promoted:
            self._promoted.pop(entry, None)

    def _reclass(self, entry: Entry, priority: Priority) -> None:
        """Count an entry under another class, that of the best of its waiters."""
        for waiting, sign in ((self.classes[entry.priority], -1), (self.classes[priority], 1)):
            waiting.tokens += sign * entry.token_count
            waiting.entries += sign
        entry.priority = priority

    def _sweep(self) -> None:
        for waiting in self.classes:
            waiting.sweep()
        if len(self._deadlines) > self._sweep_at:
            self._deadlines = [place for place in self._deadlines if place[3].queued and not place[2].done]
            heapify(self._deadlines)
            self._sweep_at = 2 * len(self._deadlines) + _PUTS_PER_SWEEP
