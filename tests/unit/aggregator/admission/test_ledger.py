"""The bytes of a process are bounded, shared, and given back to the last."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.admission.ledger import Intake, Ledger, LedgerFull, Reached
from aggregator.app import make_ledger
from aggregator.settings.aggregator import AggregatorSettings

MOST = 2000


def refused(ledger: Ledger, holder: str, amount: int) -> Reached | None:
    """Why so many bytes do not fit now, if they do not; none are kept."""
    reservation = ledger.reserve((holder,))
    try:
        reservation.grow(amount)
    except LedgerFull as full:
        return full.reached
    finally:
        reservation.free()
    return None


def test_callers_have_the_part_that_sources_which_pause_do_not() -> None:
    ledger = Ledger(MOST)
    assert (ledger.intake.most, ledger.largest) == (1000, 800)
    assert Ledger(MOST, 0.0).largest == 1600
    ledger.intake.hold("topic", 5000)
    assert refused(ledger, "a", 800) is None
    assert ledger.total == 5000


def test_a_reservation_grows_until_its_share_and_all_of_it_is_freed_once() -> None:
    ledger = Ledger(MOST)
    reservation = ledger.reserve(("a",))
    reservation.grow(300)
    reservation.grow(300)
    reservation.charge(-100)
    assert (reservation.size_bytes, ledger.total) == (500, 500)
    assert refused(ledger, "a", 200) is None
    other = ledger.reserve(("b",))
    other.grow(400)
    assert refused(ledger, "a", 1) is Reached.SHARE
    with pytest.raises(LedgerFull):
        reservation.grow(1)
    assert reservation.size_bytes == 500
    assert refused(ledger, "c", 101) is Reached.ALL
    for each in (reservation, reservation, other):
        each.free()
    assert (ledger.total, ledger.callers.holders) == (0, 0)


def test_what_could_never_fit_a_share_is_told_from_what_may_fit_later() -> None:
    ledger = Ledger(MOST)
    reservation = ledger.reserve(("a",))
    reservation.grow(700)
    assert refused(ledger, "b", 801) is Reached.NEVER
    with pytest.raises(LedgerFull, match=Reached.NEVER):
        reservation.grow(101)
    reservation.grow(100)


def test_a_holder_found_later_answers_for_all_of_it_or_refuses() -> None:
    ledger = Ledger(MOST)
    reservation = ledger.reserve(("connection",))
    reservation.grow(300)
    reservation.also_count_for("tenant")
    assert (reservation.holders, ledger.callers.holders) == (("connection", "tenant"), 2)
    ledger.reserve(("tenant",)).charge(490)
    late = ledger.reserve(("another connection",))
    late.grow(100)
    with pytest.raises(LedgerFull, match=Reached.SHARE):
        late.also_count_for("tenant")
    assert (late.holders, ledger.total) == (("another connection",), 890)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 900), st.booleans()), max_size=60))
def test_whatever_callers_ask_for_their_part_holds_and_nothing_is_left(steps: list[tuple[str, int, bool]]) -> None:
    ledger = Ledger(MOST)
    reservations = {holder: ledger.reserve((holder,)) for holder in "abcd"}
    for holder, amount, frees in steps:
        with contextlib.suppress(LedgerFull):
            reservations[holder].grow(amount)
        assert ledger.total <= 1000
        assert ledger.total == sum(each.size_bytes for each in reservations.values())
        assert max(each.size_bytes for each in reservations.values()) <= ledger.largest
        if frees:
            reservations[holder].free()
    for each in reservations.values():
        each.free()
    assert (ledger.total, ledger.callers.holders) == (0, 0)


def test_a_topic_alone_pauses_at_four_fifths_and_leaves_room_for_another() -> None:
    intake = Intake(1000)
    intake.hold("a", 799)
    assert (intake.is_full("a"), intake.is_full("b")) == (False, False)
    intake.hold("a", 800)
    assert (intake.is_full("a"), intake.is_full("b")) == (True, False)
    assert (intake.room("a"), intake.room("b")) == (0, 160)


def test_a_paused_topic_is_fetched_again_only_well_below_its_share() -> None:
    intake = Intake(1000)
    intake.hold("a", 900)
    full = []
    for held in (900, 700, 641, 639, 700, 800):
        intake.hold("a", held)
        full.append(intake.is_full("a"))
    assert full == [True, True, True, False, False, True]


def test_a_full_part_pauses_all_and_what_is_held_is_what_was_told_last() -> None:
    intake = Intake(1000)
    intake.hold("a", 600)
    intake.hold("b", 500)
    assert [intake.is_full(place) for place in "abc"] == [True, True, True]
    assert intake.room("c") < 0
    intake.hold("a", 0)
    intake.hold("a", 0)
    assert (intake.total, dict(intake.held)) == (500, {"b": 500})
    intake.hold("b", 0)
    assert not any(intake.is_full(place) for place in "abc")


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 400)), max_size=60))
def test_topics_that_take_the_room_they_are_told_never_pass_the_part(steps: list[tuple[str, int]]) -> None:
    intake = Intake(1000)
    held = dict.fromkeys("abcd", 0)
    for place, amount in steps:
        if 0 < amount <= intake.room(place):
            held[place] += amount
            intake.hold(place, held[place])
        assert intake.total <= 1000
    assert intake.room("new") > 0


@pytest.mark.parametrize(
    ("settings", "intake"),
    [
        ({}, 100),  # Kafka and gRPC
        ({"kafka": {"enabled": False}}, 0),
        ({"grpc": {"bind": ""}}, 200),
        ({"grpc": {"bind": ""}, "http": {"bind": "127.0.0.1:0"}}, 100),
    ],
)
def test_a_part_that_nobody_of_this_process_uses_goes_to_the_other(settings: dict[str, object], intake: int) -> None:
    made = make_ledger(AggregatorSettings.model_validate({"limits": {"memory_bytes": 200 << 20}, **settings}))
    assert made.intake.most == intake << 20
