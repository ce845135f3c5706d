"""What one model holds is bounded by source and class, and shared so that no tenant's calls keep others out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.admission.bounds import Address, Admission, AdmissionPolicy, Bound, Full, SharedBound, excess
from aggregator.scheduler.work_item import Priority

INTERACTIVE, DEFAULT, BACKGROUND = Priority


def test_classes_of_kafka_stop_at_their_share_and_restart_well_below_it() -> None:
    admission = Admission(AdmissionPolicy(1000))
    stopped: dict[int, frozenset[Priority]] = {}
    for held in (499, 500, 749, 750, 1000, 801, 799, 601, 599, 401, 400, 399):
        admission.charge(held - admission.total, refusable=False)
        stopped[held] = admission.stopped()
    assert stopped == {
        499: frozenset(),
        500: {BACKGROUND},
        749: {BACKGROUND},
        750: {BACKGROUND, DEFAULT},
        1000: {BACKGROUND, DEFAULT, INTERACTIVE},
        801: {BACKGROUND, DEFAULT, INTERACTIVE},
        799: {BACKGROUND, DEFAULT},
        601: {BACKGROUND, DEFAULT},
        599: {BACKGROUND},
        401: {BACKGROUND},
        400: {BACKGROUND},
        399: frozenset(),
    }


def test_what_is_held_is_counted_until_it_is_released() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(30, refusable=False)
    admission.charge(20, refusable=True)
    assert admission.total == 50
    admission.release(30, refusable=False)
    assert (admission.total, admission.released) == (20, 30)
    assert [admission.is_filled(tokens) for tokens in (999, 1000)] == [False, True]
    with pytest.raises(AssertionError, match="This is a bug"):
        admission.release(21, refusable=False)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 120)), max_size=80))
def test_intake_that_stops_when_told_overshoots_by_one_delivery_at_most(
    consumer: list[tuple[Priority, int]],
) -> None:
    admission = Admission(AdmissionPolicy(1000))
    held = dict.fromkeys(Priority, 0)
    for priority, tokens in consumer:
        if priority not in admission.stopped():
            admission.charge(tokens, refusable=False)
            held[priority] += tokens
        if BACKGROUND not in admission.stopped():
            assert not admission.stopped()  # lower classes stop first
    assert held[BACKGROUND] < 500 + 120
    assert held[BACKGROUND] + held[DEFAULT] < 750 + 120
    assert admission.total < 1000 + 120


def test_a_call_without_a_token_takes_and_leaves_nothing() -> None:
    admission = Admission(AdmissionPolicy(100))
    admission.charge(0, "t", refusable=True)
    admission.charge(5, "t", refusable=True)
    admission.release(5, "t", refusable=True)
    admission.release(0, "t", refusable=True)
    assert not admission.holds_calls


def test_all_that_leaves_counts_for_the_rate_at_which_it_does() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(900, refusable=True)
    admission.tokens_per_s(10.0)
    for _ in range(3):
        admission.release(100, refusable=True)
    assert admission.tokens_per_s(10.5) == pytest.approx(600.0)


def test_one_alone_always_finds_room() -> None:
    bound = SharedBound(10)
    assert bound.has_room(1000)
    assert bound.fits_share(("a",), 1000)
    bound.take(("a",), 1000)
    assert not bound.has_room(1)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 30)), max_size=300))
def test_however_many_flood_some_stays_free_for_the_first_of_another(asked: list[tuple[str, int]]) -> None:
    bound = SharedBound(1000)
    for holder, amount in asked:
        if bound.has_room(amount) and bound.fits_share((holder,), amount):
            bound.take((holder,), amount)
    assert bound.has_room(4)
    assert bound.fits_share(("new",), 4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(1, 9)), max_size=60))
def test_what_is_given_back_is_held_by_nobody(taken: list[tuple[str, str, int]]) -> None:
    bound = SharedBound(10)
    for *holders, amount in taken:
        bound.take(holders, amount)
    assert bound.total == sum(amount for *_, amount in taken)
    for *holders, amount in taken:
        bound.give_back(holders, amount)
    assert (bound.total, bound.holders) == (0, 0)


def test_what_one_holder_has_is_counted_until_all_of_it_is_given_back() -> None:
    bound = SharedBound(100)
    bound.take(("a",), 60)
    assert [bound.has_room(amount) for amount in (40, 41)] == [True, False]
    bound.take(("b",), 10)
    bound.also_count_for("a", 10)
    bound.give_back(("a", "nobody"), 0)
    bound.give_back(("a",), 60)
    assert (bound.total, bound.holders) == (10, 2)
    bound.give_back(("a", "b"), 10)
    assert (bound.total, bound.holders) == (0, 0)


def test_each_of_several_holders_must_have_a_share_left() -> None:
    bound = SharedBound(100)
    bound.take(("tenant", "one connection"), 80)
    assert not bound.fits_share(("tenant", "another connection"), 1)
    assert not bound.fits_share(("another tenant", "one connection"), 1)
    assert bound.fits_share(("another tenant", "another connection"), 1)


def test_one_more_may_be_held_to_account_for_what_was_taken() -> None:
    bound = SharedBound(100)
    bound.take(("connection",), 60)
    bound.also_count_for("tenant", 60)
    assert bound.total == 60
    assert not bound.fits_share(("tenant",), 101)
    bound.give_back(("connection", "tenant"), 60)
    assert (bound.total, bound.holders) == (0, 0)


def test_who_holds_nothing_may_take_four_times_what_is_free_and_no_more() -> None:
    bound = SharedBound(100)
    bound.take(("a",), 99)
    assert bound.fits_share(("new",), 4)
    assert not bound.fits_share(("new",), 5)


def greedy(bound: SharedBound, *holders: str) -> int:
    """How many ones a holder gets that takes all it can."""
    taken = 0
    while bound.has_room(1) and bound.fits_share(holders, 1):
        bound.take(holders, 1)
        taken += 1
    return taken


@given(st.integers(16, 4096), st.data())
def test_the_reserve_has_one_for_each_of_as_many_newcomers(most: int, data: st.DataObject) -> None:
    reserve = data.draw(st.integers(1, most // 16))
    bound = SharedBound(most, reserve)
    takers = data.draw(st.integers(0, 20))
    for number in range(takers):
        greedy(bound, f"taker {number}")
    newcomers = max(0, reserve - takers)
    assert [greedy(bound, f"newcomer {number}") >= 1 for number in range(newcomers)] == [True] * newcomers


def test_without_a_reserve_six_holders_take_all() -> None:
    bound = SharedBound(4096)
    assert [greedy(bound, f"holder {number}") for number in range(9)] == [3277, 656, 131, 26, 5, 1, 0, 0, 0]


def test_an_address_leaves_a_sixteenth_to_others() -> None:
    bound = SharedBound(1600)
    address = Address("10.0.0.1")
    assert [greedy(bound, address, f"connection {number}") for number in range(3)] == [1280, 188, 28]
    assert not bound.fits_share((address, "a fourth"), 84)
    assert greedy(bound, Address("10.0.0.2"), "another") == 84


@given(st.integers(16, 300), st.data())
def test_below_half_of_a_limit_every_share_has_room(most: int, data: st.DataObject) -> None:
    bound = SharedBound(most, most // 16)
    holders = (Address("10.0.0.1"), "connection")
    half = most // 2 - most // 16
    bound.take(holders, data.draw(st.integers(0, half)))
    amount = half - bound.total
    assert bound.fits_share(holders, amount)
    left = most - bound.total - most // 16
    of_address = -excess(bound.held(holders[0]), 0, left, 15.0)
    assert amount <= of_address
    assert excess(bound.held("connection"), amount, of_address, 64 / 11) <= 0
    assert excess(bound.held("connection"), amount, left) <= 0


TENANTS = ("a", "b", "c", "d", "e")
calls = st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 60), st.booleans()), max_size=200)


def fill(admission: Admission, tenant: str, token_count: int = 1) -> int:
    """Send calls of one tenant until one is refused; returns the tokens taken."""
    taken = 0
    while admission.full(tenant, token_count) is None:
        admission.charge(token_count, tenant, refusable=True)
        taken += token_count
    return taken


@pytest.mark.parametrize(
    ("calls", "kafka", "tenant", "tokens", "full"),
    [
        ({}, 0, "a", 100_000, None),  # whatever comes first is taken
        ({"a": 1000}, 0, "b", 1, Full(Bound.MODEL, 1, 1000)),
        ({"a": 900}, 0, "b", 300, Full(Bound.MODEL, 200, 900)),
        ({}, 500, "a", 500, None),  # one call may take all that is free
        ({}, 500, "a", 501, Full(Bound.MODEL, 1, 500)),
        ({"a": 700}, 290, "a", 20, Full(Bound.TENANT, 253, 700)),  # of two bounds the one that keeps it out longer
        ({"a": 700}, 290, "b", 20, Full(Bound.MODEL, 10, 700)),
        ({"a": 700}, 290, "", 20, Full(Bound.MODEL, 10, 700)),
        ({"a": 700}, 290, "", 10, None),
        ({"a": 500}, 200, "a", 450, Full(Bound.MODEL, 150, 500)),  # alike
        ({"": 300}, 600, "", 300, Full(Bound.MODEL, 280, 300)),
        ({"": 0}, 600, "", 500, Full(Bound.MODEL, 100, 600)),
    ],
)
def test_a_call_is_told_which_bound_it_does_not_fit(
    calls: dict[str, int], kafka: int, tenant: str, tokens: int, full: Full | None
) -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(kafka, tenant, refusable=False)
    for caller, held in calls.items():
        admission.charge(held, caller, refusable=True)
    assert admission.full(tenant, tokens) == full


def test_a_flooding_tenant_leaves_a_fifth_of_what_is_free_to_first_calls() -> None:
    admission = Admission(AdmissionPolicy(1000))
    assert fill(admission, "a") == 800
    assert admission.full("a", 1) == Full(Bound.TENANT, 161, 800)
    assert admission.full("b", 150) is None
    beside_kafka = Admission(AdmissionPolicy(1000))
    beside_kafka.charge(500, "a", refusable=False)  # which does not count against its calls
    assert fill(beside_kafka, "a") == 400


def test_ahead_of_a_tenants_next_is_what_it_holds_and_as_much_of_others() -> None:
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


def test_only_a_refused_tenant_stays_so_until_well_below_its_share() -> None:
    admission = Admission(AdmissionPolicy(1000))
    fill(admission, "a")
    for left in range(160):
        assert admission.full("a", 1) is not None, left
        admission.release(1, "a", refusable=True)
    assert admission.full("b", 1) is None
    admission.release(1, "a", refusable=True)
    assert admission.full("a", 1) is None
    assert fill(admission, "a") == 161


def test_refused_calls_of_no_tenant_stay_so_until_well_below_their_part() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(500, refusable=False)
    assert fill(admission, "") == 500
    admission.release(100, refusable=True)
    assert admission.full("", 1) is not None
    admission.release(1, refusable=True)
    assert fill(admission, "") == 101
    admission.release(500, refusable=True)
    assert not admission.holds_calls
    assert admission.full("", 500) is None
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


def test_a_share_moves_with_what_is_free() -> None:
    admission = Admission(AdmissionPolicy(1000, tenant_factor=1.0))
    assert fill(admission, "a") == 500
    assert fill(admission, "b") == 250
    admission.release(200, "a", refusable=True)
    assert fill(admission, "b") == 100
    assert admission.full("b", 11) == Full(Bound.TENANT, 77, 650)


@pytest.mark.parametrize("tenant", [("a",), ()])
def test_only_calls_are_calls(tenant: tuple[str, ...]) -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(10, "a", refusable=False)
    holds = [admission.holds_calls]
    admission.charge(10, *tenant, refusable=True)
    holds.append(admission.holds_calls)
    admission.release(10, *(tenant or ("",)), refusable=True)
    assert [*holds, admission.holds_calls] == [False, True, False]


def test_the_limit_and_that_of_each_class_are_tokens() -> None:
    admission = Admission(AdmissionPolicy(1000))
    assert admission.limit == 1000
    assert admission.intake_limit(BACKGROUND) == 500.0
