"""Admission: what one model holds is bounded by source and class, with hysteresis."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.scheduler.bounds import Admission, AdmissionPolicy
from aggregator.scheduler.work_item import Priority

INTERACTIVE, DEFAULT, BACKGROUND = Priority


def test_classes_of_kafka_stop_at_their_share_and_start_again_well_below_it() -> None:
    admission = Admission(AdmissionPolicy(1000))
    stopped: dict[int, frozenset[Priority]] = {}
    for held in (499, 500, 749, 750, 1000, 801, 799, 601, 599, 401, 399):
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
        399: frozenset(),
    }


def test_what_is_held_is_counted_until_it_is_released() -> None:
    admission = Admission(AdmissionPolicy(1000))
    admission.charge(30, refusable=False)
    admission.charge(20, refusable=True)
    assert admission.total == 50
    admission.release(30, refusable=False)
    assert (admission.total, admission.released) == (20, 30)
    with pytest.raises(AssertionError, match="This is a bug"):
        admission.release(21, refusable=False)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 120)), max_size=80))
def test_intake_that_stops_when_told_overshoots_by_no_more_than_one_delivery(
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
