"""A bound is shared so that whoever takes most leaves room for the next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aggregator.scheduler.bounds import SharedBound


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


def test_each_of_several_holders_must_have_a_share_left() -> None:
    bound = SharedBound(100)
    bound.take(("tenant", "one connection"), 80)
    assert not bound.fits_share(("tenant", "another connection"), 1)
    assert not bound.fits_share(("another tenant", "one connection"), 1)
    assert bound.fits_share(("another tenant", "another connection"), 1)


def test_one_more_may_be_held_to_account_for_what_was_taken() -> None:
    bound = SharedBound(100)
    bound.take(("connection",), 60)
    bound.put_down_to("tenant", 60)
    assert bound.total == 60
    assert not bound.fits_share(("tenant",), 101)
    bound.give_back(("connection", "tenant"), 60)
    assert (bound.total, bound.holders) == (0, 0)


def test_who_holds_nothing_may_take_four_times_what_is_free_and_no_more() -> None:
    bound = SharedBound(100)
    bound.take(("a",), 99)
    assert bound.fits_share(("new",), 4)
    assert not bound.fits_share(("new",), 5)
