"""The queue: what waits, in which order it is owed, and that every query leaves exactly once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from typing_extensions import override

from aggregator.scheduler.packing import Packer, PackPolicy
from aggregator.scheduler.queue import QueuePolicy, TokenQueue
from aggregator.scheduler.work_item import Priority, Query, WorkItem
from tests.support.queries import Filler

INTERACTIVE, DEFAULT, BACKGROUND = Priority


@dataclass(frozen=True, slots=True)
class Setting:
    """A queue, how to fill it, and batches of it."""

    queue: TokenQueue
    put: Filler
    packer: Packer

    def packed(self, token_budget: int = 100, now_s: float = 0.0) -> list[Query]:
        """The queries of the next batch, each with its item's first waiter."""
        packed = self.packer.pack(token_budget, now_s, max_items=1000)
        return [item.waiters[0] for item in packed.items]


def setting(policy: QueuePolicy | None = None) -> Setting:
    queue = TokenQueue(policy or QueuePolicy())
    return Setting(queue, Filler(queue), Packer(queue, PackPolicy()))


def test_classes_are_served_in_order_of_rank_and_counted_apart() -> None:
    here = setting()
    assert here.queue.next_ids() == b""
    queries = [here.put(tokens, priority)[0] for priority, tokens in zip(reversed(Priority), (3, 4, 5), strict=True)]
    assert [waiting.tokens for waiting in here.queue.classes] == [5, 4, 3]
    assert (len(here.queue), here.queue.tokens) == (3, 12)
    assert here.packed() == queries[::-1]
    assert (len(here.queue), here.queue.tokens) == (0, 0)


def test_equal_inputs_share_an_entry_of_best_class_and_earliest_deadline() -> None:
    here = setting()
    first = here.put(5, DEFAULT)
    shared = [
        here.put(5, BACKGROUND, ids=b"same"),
        here.put(5, DEFAULT, ids=b"same", deadline_s=9.0),
        here.put(5, INTERACTIVE, ids=b"same", deadline_s=8.0),
    ]
    assert len({item for _, item in shared}) == 1
    assert (len(here.queue), here.queue.tokens, here.queue.coalesced) == (2, 10, 2)
    assert [waiting.items for waiting in here.queue.classes] == [1, 1, 0]
    item = shared[0][1]
    here.queue.cancel([shared[2][0]])
    assert [waiting.tokens for waiting in here.queue.classes] == [0, 10, 0]
    assert here.packed(5) == [shared[0][0]]  # by the deadline of the one in its own class
    assert item.waiters == [shared[0][0], shared[1][0]]
    assert here.packed() == [first[0]]


def test_a_waiter_of_another_tenant_is_served_in_the_turn_of_its_own() -> None:
    here = setting()
    for _ in range(50):
        here.put(10, tenant="flood")
    _, item = here.put(10, tenant="flood", ids=b"same")
    here.put(10, tenant="small", ids=b"same")
    packed = here.packer.pack(20, 0.0, max_items=10)
    assert item in packed.items


def test_each_waiters_tenant_pays_for_a_shared_entry() -> None:
    here = setting()
    for tenant in "ab":
        here.put(60, tenant=tenant, ids=b"same")
    for tenant in "abc" * 5:
        here.put(10, tenant=tenant)
    assert [query.tenant for query in here.packed(60)] == ["a"]
    assert {query.tenant for query in here.packed(50)} == {"c"}


def test_a_joined_entry_keeps_its_place_when_the_one_who_joined_goes() -> None:
    here = setting()
    first = here.put(5, BACKGROUND, ids=b"same")
    here.put(5, BACKGROUND)
    here.queue.cancel([here.put(5, INTERACTIVE, ids=b"same")[0]])
    assert here.packed(5) == [first[0]]


def test_cancelling_what_is_under_way_or_completed_changes_no_count() -> None:
    here = setting()
    query = here.put(5)[0]
    here.packed()
    for _ in range(2):
        here.queue.cancel([query])
        assert query.done
        assert (len(here.queue), here.queue.tokens) == (0, 0)


class Looked(list[Query]):
    """Waiters that count how many of them were looked at."""

    looks = 0

    @override
    def __iter__(self) -> Iterator[Query]:
        for query in super().__iter__():
            self.looks += 1
            yield query

    @override
    def remove(self, query: Query, /) -> None:
        self.looks += self.index(query) + 1
        super().remove(query)


@pytest.mark.parametrize("leave", ["cancel", "expire"])
def test_waiters_of_one_item_leave_together_at_one_look_each(leave: str) -> None:
    here = setting()
    put = [here.put(5, DEFAULT, ids=b"same", deadline_s=9.0) for _ in range(1000)]
    item = put[0][1]
    here.put(5, BACKGROUND, ids=b"same")
    item.waiters = looked = Looked(item.waiters)
    if leave == "cancel":
        here.queue.cancel([query for query, _ in reversed(put)])
    else:
        assert len(here.queue.expire(9.0)) == 1000
    assert looked.looks <= 2 * len(put)
    assert [waiting.items for waiting in here.queue.classes] == [0, 0, 1]
    assert here.queue.next_deadline_s() == inf


def test_what_was_cancelled_does_not_expire() -> None:
    here = setting()
    cancelled, late = (here.put(5, deadline_s=deadline_s)[0] for deadline_s in (1.0, 2.0))
    here.queue.cancel([cancelled])
    assert here.queue.expire(2.0) == [late]


def test_the_aged_are_found_by_class_in_order_of_arrival() -> None:
    here = setting()
    interactive = here.put(5, INTERACTIVE, at_s=4.0)[1]
    default = here.put(5, DEFAULT, at_s=3.0)[1]
    background = here.put(5, BACKGROUND, at_s=2.0)[1]
    assert here.queue.aged(3.5) is None
    assert here.queue.aged(3.6) is default
    assert here.queue.aged(7.1) is background
    here.queue.take(background, None)
    here.queue.take(default, None)
    assert here.queue.aged(7.0) is interactive
    assert oldest_wait_s(here.queue, 7.0) == 3.0
    here.queue.take(interactive, None)
    assert here.queue.aged(99.0) is None
    assert oldest_wait_s(here.queue, 99.0) == 0.0


def test_a_better_deadline_does_not_make_a_shared_entry_younger() -> None:
    here = setting()
    _, item = here.put(5, at_s=0.0, ids=b"same")
    here.put(5, at_s=0.1)
    here.put(5, at_s=0.2, ids=b"same", deadline_s=9.0)
    assert here.queue.aged(0.55) is item


def test_an_input_ages_after_the_whole_wait_of_its_class_better_first() -> None:
    here = setting(QueuePolicy(max_wait_s=(1.0, 2.0, 4.0)))
    waiting = [here.put(5, priority)[1] for priority in reversed(Priority)]
    for item, max_wait_s in zip(reversed(waiting), (1.0, 2.0, 4.0), strict=True):
        assert here.queue.aged(max_wait_s) is None
        assert here.queue.aged(max_wait_s + 0.001) is here.queue.aged(9.0) is item
        here.queue.take(item, None)


@pytest.mark.parametrize("how", [pytest.param("expire", marks=pytest.mark.slow), "cancel"])
def test_memory_follows_what_waits_though_nothing_is_packed_for_hours(how: str) -> None:
    here = setting()
    lasting = here.put(5)
    for number in range(15_000):
        query = here.put(5, deadline_s=number * 0.001, tenant=str(number))[0]
        if how == "cancel":
            here.queue.cancel([query])
        else:
            here.queue.expire(number * 0.001)
        oldest_wait_s(here.queue, 0.0)
    assert places(here.queue) < 20_000
    assert here.packed() == [lasting[0]]


@pytest.mark.parametrize("deadline_s", [inf, 1e9])
def test_what_nobody_waits_for_any_more_is_forgotten_to_the_last(deadline_s: float) -> None:
    here = setting()
    for _ in range(15_000):
        here.queue.cancel([here.put(5, deadline_s=deadline_s)[0]])
    assert places(here.queue) < 20_000


def oldest_wait_s(queue: TokenQueue, now_s: float) -> float:
    """Age of the query that has waited longest, as the gauges tell it; 0 when none waits."""
    return max((now_s - query.enqueued_s for each in queue.classes if (query := each.oldest())), default=0.0)


def places(queue: TokenQueue) -> int:
    """Places kept anywhere, valid or not."""
    return len(queue._deadlines) + sum(len(each._arrivals) + len(each.fair) for each in queue.classes)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class EveryQueryLeavesOnce(RuleBasedStateMachine):
    """Puts, cancels, expires and packs in any order, beside a model that knows who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.waiting: dict[Query, WorkItem] = {}
        self.left: list[Query] = []
        self.put_queries: list[Query] = []
        self.queue = TokenQueue(QueuePolicy(max_wait_s=(0.5, 1.0, 3.0)))
        self.packer = Packer(self.queue, PackPolicy(lookahead=3))
        self.fill = Filler(self.queue)

    @rule(
        number=st.integers(0, 12),
        priority=st.sampled_from(Priority),
        tenant=st.sampled_from("ab"),
        within_s=st.sampled_from([0.2, 1.0, 4.0, inf, inf]),
    )
    def put(self, number: int, priority: Priority, tenant: str, within_s: float) -> None:
        query, item = self.fill(
            1 + number * 3,
            priority,
            tenant=tenant,
            at_s=self.now_s,
            deadline_s=self.now_s + within_s,
            ids=bytes([number]),
        )
        self.put_queries.append(query)
        self.waiting[query] = item

    @precondition(lambda self: self.waiting)
    @rule(chosen=st.randoms(use_true_random=False))
    def cancel(self, chosen: random.Random) -> None:
        query = chosen.choice(list(self.waiting))
        self.queue.cancel([query])
        self.leave([query])

    @rule(passing_s=st.sampled_from([0.1, 0.6, 2.0]))
    def expire(self, passing_s: float) -> None:
        self.now_s += passing_s
        expired = self.queue.expire(self.now_s)
        assert set(expired) == self.waiting_where(lambda query: query.deadline_s <= self.now_s)
        self.leave(expired)

    @rule(tenant=st.sampled_from("ab"))
    def cancel_all_of(self, tenant: str) -> None:
        if self.now_s > 5.0:
            mine = [query for item in self.queue.items() for query in item.waiters if query.tenant == tenant]
            self.queue.cancel(mine)
            self.leave(mine)

    @rule(
        token_budget=st.integers(1, 90),
        max_items=st.integers(1, 8),
        runs_s=st.sampled_from([None, 0.3, 2.0]),
    )
    def pack(self, token_budget: int, max_items: int, runs_s: float | None) -> None:
        before = len(self.waiting)
        ends_s = None if runs_s is None else self.now_s + runs_s
        packed = self.packer.pack(token_budget, self.now_s, max_items=max_items, finish_s=ends_s)
        assert packed.token_count == sum(item.token_count for item in packed.items)
        assert len(packed.items) <= max_items
        assert packed.token_count <= token_budget or (packed.oversized and len(packed.items) == 1)
        bound_s = self.now_s if ends_s is None else ends_s
        assert set(packed.late) == self.waiting_where(lambda query: query.deadline_s <= bound_s)
        self.leave(packed.late)
        for item in packed.items:
            self.leave([query for query in self.waiting if self.waiting[query] is item])
        assert not before or len(self.waiting) < before

    @invariant()
    def counts_are_exact(self) -> None:
        items = set(self.waiting.values())
        found = list(self.queue.items())
        assert (set(found), len(found)) == (items, len(items))
        for priority, each in zip(Priority, self.queue.classes, strict=True):
            of_class = [item for item in items if min(query.priority for query in item.waiters) == priority]
            assert each.items == len(of_class)
            assert each.tokens == sum(item.token_count for item in of_class)
        assert self.queue.next_deadline_s() == min((query.deadline_s for query in self.waiting), default=inf)
        assert oldest_wait_s(self.queue, self.now_s) == max(
            (self.now_s - query.enqueued_s for query in self.waiting), default=0.0
        )

    def waiting_where(self, holds: Callable[[Query], bool]) -> set[Query]:
        return {query for query in self.waiting if holds(query)}

    def leave(self, queries: list[Query]) -> None:
        for query in queries:
            del self.waiting[query]
            self.left.append(query)

    def teardown(self) -> None:
        while self.waiting:
            self.pack(40, 5, None)
        assert len(self.queue) == self.queue.tokens == 0
        assert len(self.left) == len(set(self.left)) == len(self.put_queries)


TestEveryQueryLeavesOnce = EveryQueryLeavesOnce.TestCase
TestEveryQueryLeavesOnce.settings = settings(max_examples=40, stateful_step_count=30)


def test_only_deadlines_of_what_was_taken_long_ago_are_forgotten() -> None:
    here = setting()
    lasting = here.put(5, tenant="lasting", deadline_s=50.0)[0]
    here.put(5, BACKGROUND, ids=b"shared", deadline_s=60.0)
    for number in range(9000):
        _, item = here.put(5, tenant=str(number % 10), deadline_s=100.0 + number)
        here.queue.take(item, None)
    assert places(here.queue) < 20_000
    assert len(here.queue._deadlines) < 9000  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert here.queue.next_deadline_s() == 50.0
    assert here.queue.expire(50.0) == [lasting]
    assert here.queue.next_deadline_s() == 60.0


def test_a_backlog_is_what_waits_in_the_top_class_or_half_if_interactive() -> None:
    here = setting()
    assert here.queue.backlog(0.0) == (0, 5.0)
    here.put(9, BACKGROUND)
    assert here.queue.backlog(0.0) == (9, 5.0)
    here.put(7, DEFAULT)
    assert here.queue.backlog(0.0) == (7, 0.5)
    here.put(5, INTERACTIVE)
    assert here.queue.backlog(0.0) == (2, 0.1)


def test_a_more_urgent_class_of_other_aggregators_keeps_steps_short() -> None:
    here = setting()
    here.put(9, BACKGROUND)
    assert here.queue.backlog(0.0, DEFAULT) == (0, 0.5)
    here.put(7, DEFAULT)
    assert here.queue.backlog(0.0, BACKGROUND) == (7, 0.5)
    assert here.queue.backlog(0.0, INTERACTIVE) == (0, 0.1)


def test_the_next_class_is_the_most_urgent_that_waits() -> None:
    here = setting()
    assert here.queue.next_priority is BACKGROUND
    here.put(9, BACKGROUND)
    here.put(7, DEFAULT)
    assert here.queue.next_priority is DEFAULT


def test_a_class_is_in_use_for_ten_seconds_after_something_of_it_came() -> None:
    here = setting()
    here.put(9, DEFAULT)
    query = here.put(5, INTERACTIVE)[0]
    here.queue.cancel([query])
    assert here.queue.backlog(query.enqueued_s + 9.99) == (0, 0.1)
    assert here.queue.backlog(query.enqueued_s + 10.0) == (9, 0.5)
