"""Cut the next batch off the queue: as many tokens as fit, never one more."""

from __future__ import annotations

from dataclasses import dataclass, field

from aggregator.scheduler.queue import TokenQueue
from aggregator.scheduler.work_item import Query, QueueSlot, WorkItem


@dataclass(frozen=True, slots=True)
class PackPolicy:
    """How a batch is cut.

    `lookahead`: slots examined past the first misfit. `aged_share`: of the budget, for items that waited
    too long.
    """

    lookahead: int = 64
    aged_share: float = 0.1


@dataclass(slots=True)
class PackedBatch:
    """One batch off the queue, and the queries refused because it would come too late for them.

    `aged`: it holds items that waited too long. `oversized`: one item longer than the budget, alone.
    """

    items: list[WorkItem] = field(default_factory=list)
    token_count: int = 0
    late: list[Query] = field(default_factory=list)
    aged: bool = False
    oversized: bool = False

    def add(self, item: WorkItem) -> None:
        """Put one more item into the batch."""
        self.items.append(item)
        self.token_count += item.token_count


class Packer:
    """Packs one queue's batches.

    What did not fit opens the next batch: the slot that was passed over at the head, or else the aged item
    that this left no room for; so neither large inputs nor aged ones starve the other.
    """

    def __init__(self, queue: TokenQueue, policy: PackPolicy) -> None:
        self._queue = queue
        self._policy = policy
        self._aged_is_owed = False

    def pack(self, token_budget: int, now_s: float, *, max_items: int, finish_s: float | None = None) -> PackedBatch:
        """Take items whose Σ token_count fits the budget (tokens), at most `max_entries` of them.

        `finish_s` is when the batch is predicted to end, given only while that prediction has evidence: queries
        that must be answered sooner are refused instead of computed for nobody. An item longer than the budget
        goes alone. At least one query leaves a queue that is not empty.
        """
        assert token_budget > 0, "A replica was given no budget. This is a bug."
        assert max_items > 0, "A replica was given no room for items. This is a bug."
        packed = PackedBatch(late=self._queue.expire(now_s if finish_s is None else finish_s))
        if not self._aged_is_owed:
            self._open(packed)
        self._add_aged(packed, token_budget, now_s, max_items)
        self._fill(packed, token_budget, max_items)
        self._aged_is_owed = not packed.aged and self._queue.aged(now_s) is not None
        return packed

    def _open(self, packed: PackedBatch) -> None:
        """Begin with the slot at the head of the best class, if the last batch passed it over."""
        best = next((waiting for waiting in self._queue.classes if waiting.items), None)
        if best is not None and (slot := best.pop_skipped()) is not None:
            self._queue.take(slot[3], slot[2])
            packed.add(slot[3])

    def _add_aged(self, packed: PackedBatch, token_budget: int, now_s: float, max_items: int) -> None:
        """Add aged items up to their share, and at least one: they can neither starve nor take over."""
        queue = self._queue
        share = self._policy.aged_share * token_budget
        aged_tokens = 0
        while len(packed.items) < max_items and (item := queue.aged(now_s)) is not None:
            if packed.token_count + item.token_count > token_budget:
                if not self._aged_is_owed or packed.items:
                    return
            elif aged_tokens and aged_tokens + item.token_count > share:
                return
            queue.take(item, None)
            packed.add(item)
            packed.aged = True
            aged_tokens += item.token_count

    def _fill(self, packed: PackedBatch, token_budget: int, max_items: int) -> None:
        """Add what fits, class by class; from the first misfit on, `lookahead` more slots are examined."""
        queue = self._queue
        items, token_count = packed.items, packed.token_count
        left = self._policy.lookahead + 1
        for waiting in queue.classes:
            skipped: list[QueueSlot] = []
            while left and token_count < token_budget and len(items) < max_items:
                slot = waiting.pop()
                if slot is None:
                    break
                _, _, query, item = slot
                if token_count + item.token_count <= token_budget or not items:
                    queue.take(item, query)
                    items.append(item)
                    token_count += item.token_count
                else:
                    skipped.append(slot)
                if skipped:
                    left -= 1
            waiting.put_back(skipped)
        packed.token_count = token_count
        packed.oversized = token_count > token_budget
