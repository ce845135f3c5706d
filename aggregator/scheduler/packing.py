"""Cut the next batch off the queue: as many tokens as fit, never one more."""

from __future__ import annotations

from dataclasses import dataclass, field

from aggregator.scheduler.queue import TokenQueue
from aggregator.scheduler.work_item import Entry, Place, Query


@dataclass(frozen=True, slots=True)
class PackPolicy:
    """How a batch is cut.

    `lookahead`: places examined past the first misfit. `aged_share`: of the budget, for entries that waited
    too long.
    """

    lookahead: int = 64
    aged_share: float = 0.1


@dataclass(slots=True)
class Cut:
    """One batch off the queue, and the queries refused because it would come too late for them.

    `aged`: it holds entries that waited too long. `oversized`: one entry longer than the budget, alone.
    """

    entries: list[Entry] = field(default_factory=list)
    token_count: int = 0
    late: list[Query] = field(default_factory=list)
    aged: bool = False
    oversized: bool = False

    def add(self, entry: Entry) -> None:
        """Put one more entry into the batch."""
        self.entries.append(entry)
        self.token_count += entry.token_count


class Packer:
    """Packs one queue's batches.

    What did not fit opens the next batch: the place that was passed over at the head, or else the aged entry
    that this left no room for; so neither large inputs nor aged ones starve the other.
    """

    def __init__(self, queue: TokenQueue, policy: PackPolicy) -> None:
        self._queue = queue
        self._policy = policy
        self._aged_is_owed = False

    def pack(self, token_budget: int, now_s: float, *, max_entries: int, finish_s: float | None = None) -> Cut:
        """Take entries whose Σ token_count fits the budget (tokens), at most `max_entries` of them.

        `finish_s` is when the batch is predicted to end, given only while that prediction has evidence: queries
        that must be answered sooner are refused instead of computed for nobody. An entry longer than the budget
        goes alone. At least one query leaves a queue that is not empty.
        """
        assert token_budget > 0, "A replica was given no budget. This is a bug."
        assert max_entries > 0, "A replica was given no room for entries. This is a bug."
        cut = Cut(late=self._queue.expire(now_s if finish_s is None else finish_s))
        if not self._aged_is_owed:
            self._open(cut)
        self._add_aged(cut, token_budget, now_s, max_entries)
        self._fill(cut, token_budget, max_entries)
        self._aged_is_owed = not cut.aged and self._queue.aged(now_s) is not None
        return cut

    def _open(self, cut: Cut) -> None:
        """Begin with the place at the head of the best class, if the last batch passed it over."""
        best = next((waiting for waiting in self._queue.classes if waiting.entries), None)
        if best is not None and (place := best.pop_passed()) is not None:
            self._queue.take(place[3], place[2])
            cut.add(place[3])

    def _add_aged(self, cut: Cut, token_budget: int, now_s: float, max_entries: int) -> None:
        """Add aged entries up to their share, and at least one: they can neither starve nor take over."""
        queue = self._queue
        share = self._policy.aged_share * token_budget
        aged_tokens = 0
        while len(cut.entries) < max_entries and (entry := queue.aged(now_s)) is not None:
            if cut.token_count + entry.token_count > token_budget:
                if not self._aged_is_owed or cut.entries:
                    return
            elif aged_tokens and aged_tokens + entry.token_count > share:
                return
            queue.take(entry, None)
            cut.add(entry)
            cut.aged = True
            aged_tokens += entry.token_count

    def _fill(self, cut: Cut, token_budget: int, max_entries: int) -> None:
        """Add what fits, class by class; from the first misfit on, `lookahead` more places are examined."""
        queue = self._queue
        entries, token_count = cut.entries, cut.token_count
        left = self._policy.lookahead + 1
        for waiting in queue.classes:
            passed: list[Place] = []
            while left and token_count < token_budget and len(entries) < max_entries:
                place = waiting.pop()
                if place is None:
                    break
                _, _, query, entry = place
                if token_count + entry.token_count <= token_budget or not entries:
                    queue.take(entry, query)
                    entries.append(entry)
                    token_count += entry.token_count
                else:
                    passed.append(place)
                if passed:
                    left -= 1
            waiting.put_back(passed)
        cut.token_count = token_count
        cut.oversized = token_count > token_budget
