"""Tenants of one class share it by tokens, whoever asks for how much."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.scheduler.queue import FairQueue
from aggregator.scheduler.work_item import Query, WorkItem
from tests.support.queries import query, work_item


def item_of(waiting: Query) -> WorkItem:
    assert waiting.item is not None
    return waiting.item


class FilledQueue:
    """A FairQueue with short words to fill and empty it."""

    def __init__(self) -> None:
        self.fair = FairQueue()
        self.pushed = 0

    def push(self, tenant: str, tokens: int = 10, deadline_s: float = inf) -> Query:
        self.pushed += 1
        one = query(tenant=tenant, deadline_s=deadline_s, index=self.pushed)
        work_item(b"", tokens, one, queued=True)
        self.fair.push(one)
        return one

    def pop(self) -> Query | None:
        popped = self.fair.pop()
        if popped is not None:
            item_of(popped).queued = False
        return popped

    def serve(self, served: Counter[str]) -> None:
        """Count the next query's tokens for its tenant."""
        place = self.pop()
        assert place is not None
        served[place.tenant] += item_of(place).token_count

    def tenants(self, count: int) -> str:
        """The tenants of the next places."""
        return "".join(place.tenant for _ in range(count) if (place := self.pop()) is not None)


def test_tenants_share_tokens_not_queries() -> None:
    queue = FilledQueue()
    for _ in range(300):
        queue.push("a", 30)
        queue.push("b", 10)
    served = Counter[str]()
    for _ in range(200):
        queue.serve(served)
    assert abs(served["a"] - served["b"]) <= 30


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=60, max_size=80), st.integers(1, 40))
def test_while_tenants_wait_service_differs_by_two_large_queries_at_most(
    arrivals: list[tuple[str, int]], served_first: int
) -> None:
    queue = FilledQueue()
    for tenant, tokens in arrivals[:40]:
        queue.push(tenant, tokens)
    queue.tenants(served_first)
    for tenant in "abc":
        for _ in range(30):
            queue.push(tenant, 25)
    for tenant, tokens in arrivals[40:]:
        queue.push(tenant, tokens)
    served = Counter[str]()
    for _ in range(30):
        queue.serve(served)
    assert max(served[tenant] for tenant in "abc") - min(served[tenant] for tenant in "abc") <= 2 * 50


def test_a_tenant_that_left_and_comes_back_still_owes_what_it_took() -> None:
    queue = FilledQueue()
    for _ in range(10):
        queue.push("a")
    queue.push("b", 50)
    assert queue.tenants(3).count("b") == 1  # b took 50 tokens at once
    queue.push("b", 10)
    assert "b" not in queue.tenants(3)


def test_what_was_taken_out_of_turn_counts() -> None:
    queue = FilledQueue()
    for _ in range(20):
        queue.push("a")
        queue.push("b")
    queue.fair.charge("a", 50)
    queue.fair.charge("c", 50)  # waits for nothing, but owes from now on
    assert queue.tenants(3) == "bbb"
    queue.push("c")
    assert queue.tenants(2) == "bb"
    assert sorted(queue.tenants(3)) == ["a", "b", "c"]


def test_the_next_busy_period_starts_without_debts() -> None:
    queue = FilledQueue()
    queue.push("a", 1000)
    assert queue.tenants(2) == "a"
    queue.push("a")
    queue.push("b")
    assert queue.tenants(2) == "ab"


def test_within_a_tenant_the_earliest_deadline_goes_first_then_by_arrival() -> None:
    queue = FilledQueue()
    places = [queue.push("a", deadline_s=deadline_s) for deadline_s in (inf, 3.0, inf, 1.0, 2.0, 1.0)]
    assert [queue.pop() for _ in range(6)] == [places[number] for number in (3, 5, 4, 1, 0, 2)]
    assert queue.pop() is None


def test_places_that_are_no_longer_valid_are_stepped_over_and_forgotten() -> None:
    queue = FilledQueue()
    places = [queue.push(tenant, deadline_s=deadline_s) for tenant in "abc" for deadline_s in (5.0, 6.0, inf, inf)]
    for number in (0, 2, *range(4, 8)):
        places[number].item = None
    item_of(places[8]).queued = False
    queue.fair.drop_invalid()
    assert len(queue.fair) == 2 + 5  # tenants and places
    places[1].item = None
    item_of(places[11]).queued = False
    assert queue.tenants(9) == "acc"


def test_a_tenant_in_debt_is_remembered_until_the_others_have_caught_up() -> None:
    queue = FilledQueue()
    for _ in range(4):
        queue.push("b")
    queue.fair.charge("a", 35)
    queue.fair.drop_invalid()
    queue.push("a")
    assert queue.tenants(5) == "bbbba"


def test_a_new_tenant_starts_at_the_virtual_time_and_owes_from_there() -> None:
    queue = FilledQueue()
    for _ in range(30):
        queue.push("a")
    queue.tenants(10)
    queue.push("b")
    queue.push("b")
    assert queue.tenants(4) in {"abab", "baba", "abba", "baab"}
    queue.fair.charge("c", 30)
    queue.push("c")
    assert queue.tenants(2) == "aa"
    assert "c" in queue.tenants(2)


def test_of_tenants_owed_the_same_the_one_served_longer_ago_goes_first() -> None:
    queue = FilledQueue()
    for tenant in "abc" * 4:
        queue.push(tenant)
    assert queue.tenants(12) == "abc" * 4
