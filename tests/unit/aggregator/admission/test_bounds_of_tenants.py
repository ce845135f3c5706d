"""No tenant's calls can fill the bound that all share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.scheduler.bounds import Admission, AdmissionPolicy, Bound, Full

TENANTS = ("a", "b", "c", "d", "e")
calls = st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 60), st.booleans()), max_size=200)


def fill(admission: Admission, tenant: str, token_count: int = 1) -> int:
    """Send calls of one tenant until one is refused; returns the tokens taken."""
    taken = 0
    while admission.full(tenant, token_count) is None:
        admission.charge(token_count, tenant, refusable=True)
        taken += token_count
    return taken


def test_a_tenant_that_floods_leaves_room_for_the_first_calls_of_another() -> None:
    admission = Admission(AdmissionPolicy(1000))
    fill(admission, "a")
    assert admission.full("a", 1) == Full(Bound.TENANT, 161, 800)
    assert admission.full("b", 150) is None


def test_ahead_of_what_a_tenant_sends_next_is_what_it_holds_and_as_much_of_each_other() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(200, refusable=False)
    admission.charge(100, "b", refusable=True)
    held = fill(admission, "a")
    full = admission.full("a", 1)
    assert full is not None
    assert full.ahead_tokens == held + 100
    for _ in range(90):
        admission.charge(1, "c", refusable=True)
    full = admission.full("b", 1000)
    assert full is not None
    assert full.ahead_tokens == 300


def test_a_tenant_that_was_refused_stays_so_until_well_below_its_share_and_others_do_not() -> None:
    admission = Admission(AdmissionPolicy(1000))
    fill(admission, "a")
    for left in range(160):
        assert admission.full("a", 1) is not None, left
        admission.release(1, "a", refusable=True)
    assert admission.full("b", 1) is None
    admission.release(1, "a", refusable=True)
    assert admission.full("a", 1) is None
    assert fill(admission, "a") == 161


def test_calls_without_a_tenant_that_were_refused_stay_so_until_well_below_what_kafka_leaves_them() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(500, refusable=False)
    assert fill(admission, "") == 500
    admission.release(100, refusable=True)
    assert admission.full("", 1) is not None
    admission.release(1, refusable=True)
    assert fill(admission, "") == 101
    admission.release(500, refusable=True)
    assert fill(admission, "") == 500


def test_tenants_that_flood_one_after_the_other_end_up_with_equal_shares() -> None:
    admission = Admission(AdmissionPolicy(2000))
    held = {tenant: fill(admission, tenant) for tenant in TENANTS}
    for _ in range(4000):  # the longest queue drains, and each sends again what fits
        longest = max(held, key=lambda tenant: held[tenant])
        admission.release(1, longest, refusable=True)
        held[longest] -= 1
        for tenant in TENANTS:
            held[tenant] += fill(admission, tenant)
    assert max(held.values()) - min(held.values()) < 0.2 * max(held.values())
    assert admission.full("newcomer", 1) is None


def test_what_does_not_fit_the_bound_at_all_says_so() -> None:
    admission = Admission(AdmissionPolicy(100))
    admission.charge(90, "a", refusable=True)
    assert admission.full("b", 30) == Full(Bound.MODEL, 20, 90)
    admission = Admission(AdmissionPolicy(100))
    admission.charge(60, refusable=False)
    admission.charge(30, refusable=True)
    assert admission.full("", 30) == Full(Bound.MODEL, 28, 30)
    admission.release(30, refusable=True)
    assert admission.full("", 50) == Full(Bound.MODEL, 10, 60)


def test_a_call_larger_than_the_bound_is_taken_when_nothing_else_is_held() -> None:
    admission = Admission(AdmissionPolicy(100))
    assert admission.full("a", 1000) is None
    admission.charge(1000, "a", refusable=True)
    assert admission.full("a", 1) is not None


def test_background_work_from_kafka_does_not_count_against_a_tenants_calls() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(500, "a", refusable=False)
    assert fill(admission, "a") == 400


@pytest.mark.slow
@given(calls)
def test_what_was_charged_and_released_leaves_nothing_behind(steps: list[tuple[str, int, bool]]) -> None:
    admission = Admission(AdmissionPolicy(1000))
    held: list[tuple[str, int]] = []
    for tenant, token_count, leave in steps:
        if admission.full(tenant, token_count) is None:
            admission.charge(token_count, tenant, refusable=True)
            held.append((tenant, token_count))
            assert admission.total <= 1000
        if leave and held:
            left, tokens = held.pop(0)
            admission.release(tokens, left, refusable=True)
    for tenant, token_count in held:
        admission.release(token_count, tenant, refusable=True)
    assert admission.total == 0
    assert fill(admission, "a") == fill(Admission(AdmissionPolicy(1000)), "a")


@pytest.mark.slow
@given(st.integers(2, 10_000), st.integers(1, 500))
def test_a_refusal_says_how_much_must_leave(bound: int, token_count: int) -> None:
    admission = Admission(AdmissionPolicy(bound))
    fill(admission, "a", token_count)
    full = admission.full("a", token_count)
    assert full is not None
    leaves = min(full.excess_tokens, admission.total)
    admission.release(leaves, "a", refusable=True)
    assert admission.full("a", token_count) is None


def test_one_call_may_take_all_that_is_free_and_many_leave_a_fifth_of_it() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(500, refusable=False)
    assert admission.full("a", 500) is None
    assert admission.full("a", 501) == Full(Bound.MODEL, 1, 500)
    assert fill(admission, "a") == 400
    assert admission.full("a", 100) == Full(Bound.TENANT, 116, 400)


def test_a_share_moves_with_what_is_free() -> None:
    admission = Admission(AdmissionPolicy(1000, tenant_factor=1.0))
    assert fill(admission, "a") == 500
    assert fill(admission, "b") == 250
    admission.release(200, "a", refusable=True)
    assert fill(admission, "b") == 100
    assert admission.full("b", 11) == Full(Bound.TENANT, 77, 650)


def test_the_bound_that_keeps_a_call_out_longer_is_the_one_told() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(700, "a", refusable=True)
    admission.charge(290, refusable=False)
    assert admission.full("a", 20) == Full(Bound.TENANT, 253, 700)
    assert admission.full("b", 20) == Full(Bound.MODEL, 10, 700)
    assert admission.full("", 20) == Full(Bound.MODEL, 10, 700)
    assert admission.full("", 10) is None


def test_a_tenants_own_calls_leave_it_one_by_one() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(300, "a", refusable=True)
    admission.charge(400, "a", refusable=True)
    admission.release(300, "a", refusable=True)
    assert fill(admission, "a") == 400


def test_only_calls_are_calls() -> None:
    admission = Admission(AdmissionPolicy(1000))
    holds = [admission.holds_calls]
    for refusable in (False, True):
        admission.charge(10, "a", refusable=refusable)
        holds.append(admission.holds_calls)
    admission.release(10, "a", refusable=True)
    assert [*holds, admission.holds_calls] == [False, False, True, False]


def test_as_many_tokens_as_may_be_held_fill_a_model() -> None:
    admission = Admission(AdmissionPolicy(1000))
    assert [admission.is_filled(tokens) for tokens in (999, 1000, 1001)] == [False, True, True]


def test_who_finds_model_and_share_full_alike_is_told_of_the_model() -> None:
    admission = Admission(AdmissionPolicy(100))
    admission.charge(50, "a", refusable=True)
    admission.charge(20, refusable=False)
    assert admission.full("a", 45) == Full(Bound.MODEL, 15, 50)
