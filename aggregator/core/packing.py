"""Cut the next batch off the queue: as many tokens as fit, never one more."""

from __future__ import annotations

from dataclasses import dataclass, field

from aggregator.core.query import Entry, Query
from aggregator.core.queue import ClassQueue, TokenQueue


@dataclass(frozen=True, slots=True)
class PackPolicy:
    """How a batch is cut.

    `lookahead`: entries examined past the first misfit. `aged_share`: of the budget, for entries that waited
    too long.
    """

    lookahead: int = 64
    aged_share: float = 0.1


@dataclass(slots=True)
class Cut:
    """One batch off the queue, and the queries refused because it would come too late for them.

    `opens_aged`: it holds entries that waited too long. `oversized`: one entry longer than the budget, alone.
    """

    entries: list[Entry] = field(default_factory=list)
    token_count: int = 0
    late: list[Query] = field(default_factory=list)
    opens_aged: bool = False
    oversized: bool = False


class Packer:
    """Packs one queue's batches; remembers only whether the last one was an aged oversized entry."""

    def __init__(self, queue: TokenQueue, policy: PackPolicy) -> None:
        self._queue = queue
        self._policy = policy
        self._aged_oversized_went_last = False

    def pack(self, token_budget: int, now_s: float, *, max_entries: int, finish_s: float | None = None) -> Cut:
        """Take entries whose Σ token_count fits the budget (tokens), at most `max_entries` of them.

        `finish_s` is when the batch is predicted to end, given only while that prediction has evidence: queries
        that must be answered sooner are refused instead of computed for nobody. An entry longer than the budget
        goes alone.
        """
        assert token_budget > 0, "A lane was given no budget. This is a bug."
        cut = Cut()
        self._take_aged(cut, token_budget, now_s, max_entries)
        if cut.oversized:
            self._aged_oversized_went_last = True
            return cut
        self._aged_oversized_went_last = False
        left = self._policy.lookahead
        for waiting in self._queue.classes:
            left = self._fill(cut, waiting, token_budget, max_entries, finish_s, left)
            if left < 0 or cut.oversized or cut.token_count >= token_budget or len(cut.entries) >= max_entries:
                break
        return cut

    def _take_aged(self, cut: Cut, token_budget: int, now_s: float, max_entries: int) -> None:
        """Aged entries first, up to their share, and at least one: they can neither starve nor take over."""
        queue = self._queue
        share = self._policy.aged_share * token_budget
        while len(cut.entries) < max_entries and (entry := queue.aged(now_s)) is not None:
            if entry.token_count > token_budget:
                # Alone in its batch, it takes all of it: so ordinary work goes in between two of them.
                if cut.entries or self._aged_oversized_went_last:
                    return
                cut.oversized = True
            elif cut.entries and cut.token_count + entry.token_count > share:
                return
            cut.opens_aged = True
            _take(queue, cut, entry)
            if cut.oversized:
                return

    def _fill(  # noqa: PLR0913 - one pass over one class, with all that limits it
        self, cut: Cut, waiting: ClassQueue, token_budget: int, max_entries: int, finish_s: float | None, left: int
    ) -> int:
        """Take what fits from one class; returns the look-ahead that remains, below 0 when it is used up."""
        queue = self._queue
        passed: list[Entry] = []
        misfit_met = left < self._policy.lookahead
        while cut.token_count < token_budget and len(cut.entries) < max_entries:
            entry = waiting.pop()
            if entry is None:
                break
            if misfit_met:
                left -= 1
            if finish_s is not None and entry.deadline_s < finish_s:
                _refuse_late(queue, cut, entry, finish_s)
                if not entry.ticket:
                    continue
            if cut.token_count + entry.token_count <= token_budget:
                _take(queue, cut, entry)
            elif not cut.entries:
                cut.oversized = True
                _take(queue, cut, entry)
                break
            else:
                misfit_met = True
                passed.append(entry)
            if misfit_met and left <= 0:
                left = -1
                break
        waiting.put_back(passed)
        return left


def _take(queue: TokenQueue, cut: Cut, entry: Entry) -> None:
    queue.take(entry)
    cut.entries.append(entry)
    cut.token_count += entry.token_count


def _refuse_late(queue: TokenQueue, cut: Cut, entry: Entry, finish_s: float) -> None:
    for query in entry.waiters:
        if not query.done and query.deadline_s < finish_s:
            queue.cancel(query, entry)
            cut.late.append(query)
