"""Pack the next batch from the queue: as many tokens as fit the token budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from aggregator.scheduler.queue import TokenQueue
from aggregator.scheduler.work_item import Priority, Query, WorkItem


@dataclass(frozen=True, slots=True)
class PackPolicy:
    """How a batch is packed.

    `lookahead`: queries examined after the first one that does not fit. `aged_share`: the share of all packed tokens
    that aged items may take out of turn.
    """

    lookahead: int = 64
    aged_share: float = 0.1


@dataclass(slots=True)
class PackedBatch:
    """The items of one batch, and the queries refused because the batch would end after their deadlines.

    `row_count`: of the vectors that they give. `aged`: it holds aged items. `oversized`: it holds one item longer than
    the budget, alone.
    """

    items: list[WorkItem] = field(default_factory=list)
    token_count: int = 0
    row_count: int = 0
    late: list[Query] = field(default_factory=list)
    aged: bool = False
    oversized: bool = False

    def add(self, item: WorkItem) -> None:
        self.items.append(item)
        self.token_count += item.token_count
        self.row_count += item.rows


class Packer:
    """Packs the batches of one queue.

    The query at the head that did not fit goes first into the next batch. Otherwise an aged item that did not fit goes
    first. So neither large inputs nor aged ones starve the other. Every packed token earns its share of one that is
    aged; an aged item goes out of turn once its tokens are earned, unless its class gets its share in turn.
    """

    def __init__(self, queue: TokenQueue, policy: PackPolicy) -> None:
        self._queue = queue
        self._policy = policy
        self._aged_is_owed = False
        self._earned_tokens = 0.0

    def pack(
        self,
        token_budget: int,
        now_s: float,
        *,
        max_items: int,
        finish_s: float | None = None,
        shared_budget: int | None = None,
    ) -> PackedBatch:
        """Take items whose Σ token_count fits the budget (tokens), at most `max_items` of them.

        A document in chunks counts once per chunk. `finish_s` is the predicted end of the batch, given only if that
        prediction has evidence. Queries with an earlier deadline are refused. An item that is longer, or has more
        chunks, goes alone. At least one query leaves a queue that is not empty. Less urgent items join interactive ones
        only up to `shared_budget` tokens (None: the budget).
        """
        assert token_budget > 0, "A replica was given no budget. This is a bug."
        assert max_items > 0, "A replica was given no room for items. This is a bug."
        packed = PackedBatch(late=self._queue.expire(now_s if finish_s is None else finish_s))
        if not self._aged_is_owed:
            self._open(packed)
        self._add_aged(packed, token_budget, now_s, max_items)
        self._fill(packed, token_budget, max_items, token_budget if shared_budget is None else shared_budget)
        self._earn(packed, token_budget, now_s)
        return packed

    def _earn(self, packed: PackedBatch, token_budget: int, now_s: float) -> None:
        """Note what the batch's tokens earn for the next aged item, less what aged ones of its class got in it.

        No more than one batch's share is saved, or that item.
        """
        share, aged = self._policy.aged_share, self._queue.aged(now_s)
        earned, most = self._earned_tokens + share * packed.token_count, share * token_budget
        if aged is not None:
            most = max(most, aged.token_count)
            aged_since_s = now_s - self._queue.classes[aged.priority].max_wait_s
            earned -= sum(
                [
                    item.token_count
                    for item in packed.items
                    if item.priority is aged.priority and item.waiters[0].enqueued_s < aged_since_s
                ]
            )
        self._earned_tokens = max(0.0, min(most, earned))
        self._aged_is_owed = not packed.aged and aged is not None and aged.token_count <= self._earned_tokens

    def _open(self, packed: PackedBatch) -> None:
        """Begin with the query at the head of the most urgent class, if the last batch skipped it."""
        best = next((waiting for waiting in self._queue.classes if waiting.items), None)
        if best is not None and (query := best.pop_skipped()) is not None and query.item is not None:
            packed.add(query.item)
            self._queue.take(query.item, query)

    def _add_aged(self, packed: PackedBatch, token_budget: int, now_s: float, max_items: int) -> None:
        """Add aged items whose tokens are earned: they neither starve nor fill the batch."""
        queue, earned = self._queue, self._earned_tokens
        while packed.row_count < max_items and (item := queue.aged(now_s)) is not None:
            if item.token_count > earned or (packed.items and packed.row_count + item.rows > max_items):
                return
            if packed.token_count + item.token_count > token_budget and (not self._aged_is_owed or packed.items):
                return
            queue.take(item, None)
            packed.add(item)
            packed.aged = True
            earned -= item.token_count

    def _fill(self, packed: PackedBatch, token_budget: int, max_items: int, shared_budget: int) -> None:
        """Add what fits, class by class; after the first query that does not fit, examine `lookahead` more."""
        queue = self._queue
        items, token_count, rows = packed.items, packed.token_count, packed.row_count
        left = self._policy.lookahead + 1
        for waiting in queue.classes:
            room = token_budget
            is_first = waiting is queue.classes[Priority.INTERACTIVE]
            if not is_first and Priority.INTERACTIVE in [item.priority for item in items]:
                room = min(token_budget, shared_budget)
            skipped: list[Query] = []
            while left and token_count < room and rows < max_items:
                query = waiting.pop()
                if query is None or (item := query.item) is None:
                    break
                item_rows = item.rows
                if (token_count + item.token_count <= room and rows + item_rows <= max_items) or not items:
                    queue.take(item, query)
                    items.append(item)
                    token_count += item.token_count
                    rows += item_rows
                else:
                    skipped.append(query)
                if skipped:
                    left -= 1
            waiting.put_back(skipped)
        packed.token_count, packed.row_count = token_count, rows
        packed.oversized = token_count > token_budget
