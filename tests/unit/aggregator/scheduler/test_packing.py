"""Batches: full but never over their budget, fair to classes, and closed to nobody."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.scheduler.packing import PackedBatch, Packer, PackPolicy
from aggregator.scheduler.queue import QueuePolicy, TokenQueue
from aggregator.scheduler.work_item import Priority
from tests.support.queries import Filler

INTERACTIVE, DEFAULT, BACKGROUND = Priority


def filled(token_counts: Sequence[int], policy: PackPolicy | None = None) -> tuple[Filler, Packer]:
    queue = TokenQueue(QueuePolicy())
    put = Filler(queue)
    for tokens in token_counts:
        put(tokens)
    return put, Packer(queue, policy or PackPolicy())


def sizes(packed: PackedBatch) -> list[int]:
    counts = [item.token_count for item in packed.items]
    assert packed.token_count == sum(counts)
    return counts


def pack(packer: Packer, token_budget: int = 100, now_s: float = 0.0, finish_s: float | None = None) -> PackedBatch:
    return packer.pack(token_budget, now_s, max_items=1000, finish_s=finish_s)


lengths = st.lists(st.integers(1, 60), max_size=120)


@pytest.mark.slow
@settings(max_examples=60)
@given(lengths, st.integers(1, 100), st.integers(1, 20), st.integers(0, 70))
def test_packing_loses_nothing_and_keeps_within_the_budget_and_most_items(
    token_counts: list[int], token_budget: int, max_items: int, lookahead: int
) -> None:
    put, packer = filled(token_counts, PackPolicy(lookahead=lookahead))
    sent: list[int] = []
    while len(put.queue):
        packed = packer.pack(token_budget, 0.0, max_items=max_items)
        assert 0 < len(packed.items) <= max_items
        assert packed.token_count <= token_budget or (packed.oversized and len(packed.items) == 1)
        sent += sizes(packed)
    assert sorted(sent) == sorted(token_counts)


@pytest.mark.slow
@settings(max_examples=60)
@given(lengths, st.integers(60, 100))
def test_a_batch_is_left_with_room_only_where_nothing_in_reach_fits(token_counts: list[int], token_budget: int) -> None:
    put, packer = filled(token_counts, PackPolicy(lookahead=1000))
    while len(put.queue):
        room = token_budget - pack(packer, token_budget).token_count
        assert all(item.token_count > room for item in put.queue.items())


def test_past_the_first_misfit_no_more_than_the_lookahead_is_examined() -> None:
    _, packer = filled([60, 50, 70, 40], PackPolicy(lookahead=1))
    assert sizes(pack(packer)) == [60]
    _, packer = filled([60, 50, 70, 40], PackPolicy(lookahead=2))
    assert sizes(pack(packer)) == [60, 40]
    _, packer = filled([60, 50, 30], PackPolicy(lookahead=0))
    assert sizes(pack(packer)) == [60]


def test_the_lookahead_is_of_all_classes_together() -> None:
    put, packer = filled([60, 50, 70], PackPolicy(lookahead=1))
    put(40, BACKGROUND)
    assert sizes(pack(packer)) == [60]


def test_nothing_is_passed_over_for_a_batch_that_is_full() -> None:
    put, packer = filled([100, 50])
    assert sizes(pack(packer)) == [100]
    put(70, deadline_s=1.0)
    assert sizes(pack(packer)) == [70]


def test_what_was_passed_over_opens_the_next_batch_before_the_more_urgent() -> None:
    put, packer = filled([60, 50])
    assert sizes(pack(packer)) == [60]
    put(70, deadline_s=1.0)
    put(70, tenant="who had nothing yet")
    assert sizes(pack(packer)) == [50]


@pytest.mark.parametrize("deadline_s", [inf, 9.0])
def test_several_that_were_passed_over_keep_their_order(deadline_s: float) -> None:
    put, packer = filled([])
    for tokens in (80, 70, 60, 20, 30, 40):
        put(tokens, deadline_s=deadline_s)
    assert sizes(pack(packer)) == [80, 20]
    assert sizes(pack(packer)) == [70, 30]
    assert sizes(pack(packer)) == [60, 40]


def test_at_most_one_that_was_passed_over_goes_before_another_tenant() -> None:
    put, packer = filled([60] * 20)
    assert sizes(pack(packer)) == [60]
    put(61, tenant="another")
    assert [sizes(pack(packer)) for _ in range(3)] == [[60], [60], [61]]


def test_tenants_keep_their_turns_when_queries_of_theirs_are_passed_over() -> None:
    put, packer = filled([])
    for _ in range(12):
        put(60, tenant="one")
        put(61, tenant="another")
    assert [sizes(pack(packer)) for _ in range(24)] == [[60], [61]] * 12


def test_a_batch_of_as_many_entries_as_a_server_takes_ends_there() -> None:
    put, packer = filled([10] * 5)
    put(10, BACKGROUND)
    assert sizes(packer.pack(100, 0.0, max_items=3)) == [10] * 3
    assert len(packer.pack(100, 0.0, max_items=3).items) == 3


def test_lower_classes_fill_what_the_higher_leave() -> None:
    put, packer = filled([60])
    put(30, INTERACTIVE)
    put(10, BACKGROUND)
    assert sizes(pack(packer)) == [30, 60, 10]


def test_one_passed_over_in_a_lower_class_does_not_go_before_a_higher() -> None:
    put, packer = filled([80])
    put(50, INTERACTIVE)
    assert sizes(pack(packer)) == [50]
    put(90, INTERACTIVE)
    assert sizes(pack(packer)) == [90]


def test_one_longer_than_the_budget_is_next_when_it_was_passed_over() -> None:
    _, packer = filled([10, 250, 20, 30])
    assert sizes(pack(packer)) == [10, 20, 30]
    assert sizes(pack(packer)) == [250]


def test_expired_queries_never_reach_an_engine() -> None:
    put, packer = filled([])
    expired, lasting = put(10, deadline_s=5.0)[0], put(10, deadline_s=5.1)[1]
    packed = pack(packer, now_s=5.0)
    assert (packed.late, packed.items) == ([expired], [lasting])


def test_what_cannot_be_in_time_is_refused_and_costs_its_tenant_nothing() -> None:
    put, packer = filled([])
    late = [put(10, tenant="tight", deadline_s=6.0)[0] for _ in range(20)]
    for tenant in ("tight", "other") * 10:
        put(10, tenant=tenant, deadline_s=9.0)
    packed = pack(packer, finish_s=6.5)
    assert packed.late == late
    assert [item.waiters[0].tenant for item in packed.items].count("tight") == 5


def test_a_shared_entry_is_computed_for_those_who_can_wait() -> None:
    put, packer = filled([])
    hurried, item = put(10, ids=b"same", deadline_s=1.0)
    patient, _ = put(10, ids=b"same", deadline_s=9.0)
    packed = pack(packer, finish_s=2.0)
    assert (packed.late, packed.items, item.waiters) == ([hurried], [item], [patient])


def test_an_aged_entry_goes_out_of_turn_once_batches_earned_its_tokens() -> None:
    put, packer = filled([])
    for _ in range(10):
        put(30, BACKGROUND)
    for _ in range(100):
        put(10, INTERACTIVE, at_s=10.0)
    batches = [pack(packer, now_s=10.0) for _ in range(7)]
    assert [packed.aged for packed in batches] == [False, False, False, True, False, False, True]
    assert sizes(batches[3]) == [30] + [10] * 7


def test_aged_entries_fill_no_more_than_their_share() -> None:
    put, packer = filled([])
    for _ in range(10):
        put(5, BACKGROUND)
    for _ in range(100):
        put(10, INTERACTIVE, at_s=10.0)
    pack(packer, now_s=10.0)
    assert sizes(pack(packer, now_s=10.0)) == [5, 5] + [10] * 9


def test_aged_entries_of_a_class_served_in_turn_get_nothing_out_of_turn() -> None:
    put, packer = filled([])
    for _ in range(100):
        put(20, BACKGROUND)
    for _ in range(20):
        put(10, INTERACTIVE, at_s=10.0)
        packed = pack(packer, now_s=10.0)
        assert (sizes(packed), packed.aged) == ([10] + [20] * 4, False)


def test_an_aged_entry_that_just_fits_fills_the_batch() -> None:
    put, packer = filled([])
    put(100, BACKGROUND)
    for _ in range(110):
        put(10, INTERACTIVE, at_s=10.0)
    for _ in range(10):
        assert not pack(packer, now_s=10.0).aged
    packed = pack(packer, now_s=10.0)
    assert (sizes(packed), packed.aged) == ([100], True)


def test_an_aged_entry_that_does_not_fit_a_batch_opens_the_next() -> None:
    put, packer = filled([60, 95])
    assert sizes(pack(packer)) == [60]
    put(6, BACKGROUND, at_s=-3600.0)
    assert sizes(pack(packer)) == [95]
    put(60, INTERACTIVE)
    assert sizes(pack(packer)) == [6, 60]


def test_less_urgent_entries_join_interactive_ones_to_the_shared_budget() -> None:
    put, packer = filled([10] * 10)
    put(20, INTERACTIVE)
    assert sizes(packer.pack(100, 0.0, max_items=1000, shared_budget=45)) == [20, 10, 10]
    assert sizes(packer.pack(70, 0.0, max_items=1000, shared_budget=5)) == [10] * 7
    put(60, INTERACTIVE)
    assert sizes(packer.pack(100, 0.0, max_items=1000, shared_budget=45)) == [60]


def test_a_backlog_of_aged_work_does_not_hold_up_interactive_calls() -> None:
    put, packer = filled([])
    for _ in range(2000):
        put(10, BACKGROUND, at_s=-3600.0)
    for step in range(100):
        calls = [put(10, INTERACTIVE, at_s=step)[1] for _ in range(2)]
        assert set(calls) <= set(pack(packer, now_s=step).items)


@pytest.mark.parametrize("tokens", [96, 250])
def test_a_large_input_is_not_kept_out_by_the_aged_that_join_each_batch(tokens: int) -> None:
    put, packer = filled([])
    for _ in range(10):
        put(5, BACKGROUND, at_s=-3600.0)
    for _ in range(100):
        put(10, INTERACTIVE)
    _, item = put(tokens, INTERACTIVE, deadline_s=9.0)  # at the head
    batches = [pack(packer) for _ in range(3)]
    assert any(item in packed.items for packed in batches)


@pytest.mark.parametrize("tokens", [96, 250])
def test_aged_inputs_that_fill_their_batch_get_their_share_of_all_batches(tokens: int) -> None:
    put, packer = filled([])
    for _ in range(50):
        put(tokens, BACKGROUND, at_s=-3600.0)
        put(tokens, INTERACTIVE)
    taken = [packed.items[0].priority for _ in range(50) for packed in [pack(packer)]]
    assert 4 <= taken.count(BACKGROUND) <= 5


def test_a_batch_of_few_entries_may_be_all_aged() -> None:
    put, packer = filled([])
    for _ in range(3):
        put(2, BACKGROUND, at_s=-3600.0)
    for _ in range(2):
        put(90, INTERACTIVE)
    assert not packer.pack(100, 0.0, max_items=1).aged
    assert packer.pack(100, 0.0, max_items=2).aged
    assert len(put.queue) == 2


def test_what_opens_a_batch_and_just_fills_it_is_not_oversized() -> None:
    _, packer = filled([60, 100])
    assert sizes(pack(packer)) == [60]
    packed = pack(packer)
    assert (sizes(packed), packed.oversized) == ([100], False)


def test_who_opens_a_batch_is_charged_once_as_is_whoever_shares_the_input() -> None:
    put, packer = filled([60], PackPolicy(lookahead=0))
    for tenant in ("a", "b"):
        put(100, tenant=tenant, ids=b"same")
    waiting = {tenant: [put(60, tenant=tenant)[1] for _ in range(2)] for tenant in ("b", "a")}
    pack(packer)
    pack(packer)
    order = [pack(packer).items for _ in range(4)]
    assert [next(tenant for tenant, items in waiting.items() if each[0] in items) for each in order] == [*"baba"]
