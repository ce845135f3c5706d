"""The rate of arrivals, whatever becomes of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.wings.scaler.reporting.arrivals import ArrivalPolicy, Arrivals


def test_a_burst_in_the_first_moment_is_no_infinite_rate() -> None:
    arrivals = Arrivals(ArrivalPolicy(), 0.0)
    arrivals.arrived(1000, 0.0)
    arrivals.counted(1000, 1000, 5000)
    assert arrivals.tokens_per_s(0.0) == pytest.approx(5000 / (15.0 * (1.0 - math.exp(-1 / 15))))


def test_what_is_refused_is_demand_all_the_same() -> None:
    """Only a tenth is admitted, and counted: the rate is that of all."""
    arrivals = Arrivals(ArrivalPolicy(), 0.0)
    for second in range(100):
        arrivals.arrived(100, float(second))
        arrivals.counted(10, 10, 120)
    assert arrivals.tokens_per_s(99.5) == pytest.approx(1200, rel=0.05)


def test_nothing_arrives_five_windows_after_the_last_arrival() -> None:
    arrivals = Arrivals(ArrivalPolicy(window_s=10.0), 0.0)
    arrivals.arrived(1000, 100.0)
    arrivals.arrived(1, 110.0)
    arrivals.arrived(0, 120.0)
    assert arrivals.tokens_per_s(160.0) > 0.0
    assert arrivals.tokens_per_s(160.1) == 0.0
    arrivals.arrived(10, 161.0)
    assert arrivals.tokens_per_s(161.0) == pytest.approx(20.0, rel=0.01)


def test_what_arrives_counts_by_a_guess_of_lengths_before_any_was_counted() -> None:
    arrivals = Arrivals(ArrivalPolicy(first_tokens_per_input=7.0), 0.0)
    assert arrivals.tokens_per_s(1.0) == 0.0
    arrivals.arrived(10, 1.0)
    arrivals.counted(0, 0, 0)
    assert arrivals.tokens_per_s(1.0) == pytest.approx(70.0, rel=0.05)
    assert arrivals.tokens_per_request == 0.0


def test_a_clock_that_steps_back_changes_nothing() -> None:
    arrivals = Arrivals(ArrivalPolicy(), 10.0)
    arrivals.counted(1, 1, 10)
    arrivals.arrived(5, 20.0)
    before = arrivals.tokens_per_s(20.0)
    arrivals.arrived(0, 15.0)
    assert arrivals.tokens_per_s(20.0) == before


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 10_000), st.integers(1, 500)), max_size=50))
def test_a_rate_is_never_negative_and_never_infinite(events: list[tuple[float, int, int]]) -> None:
    arrivals = Arrivals(ArrivalPolicy(), 0.0)
    for now_s, inputs, tokens in events:
        arrivals.arrived(inputs, now_s)
        arrivals.counted(inputs, inputs, inputs * tokens)
        assert 0.0 <= arrivals.tokens_per_s(now_s) < 1e12


def test_a_request_of_several_inputs_counts_with_all_of_them() -> None:
    arrivals = Arrivals(ArrivalPolicy(window_s=15.0), 0.0)
    for second in range(120):
        arrivals.arrived(40, float(second))
        arrivals.counted(10, 40, 480)
    assert arrivals.tokens_per_request == pytest.approx(48.0)
    assert arrivals.tokens_per_s(119.5) == pytest.approx(480, rel=0.05)


def test_requests_without_inputs_teach_nothing() -> None:
    arrivals = Arrivals(ArrivalPolicy(), 0.0)
    arrivals.counted(1, 1, 10)
    arrivals.counted(3, 0, 0)
    assert arrivals.tokens_per_request == 10.0


def test_the_rate_is_that_of_an_exponential_window() -> None:
    arrivals = Arrivals(ArrivalPolicy(window_s=10.0), 1000.0)
    arrivals.counted(1, 1, 8)
    arrivals.arrived(100, 1005.0)
    arrivals.arrived(50, 1020.0)
    seen_s = 10.0 * (1.0 - math.exp(-2.0))
    assert arrivals.tokens_per_s(1020.0) == pytest.approx((800 * math.exp(-1.5) + 400) / seen_s)
    assert (arrivals.total_inputs, arrivals.total_tokens) == (150, 8)
    arrivals.counted(1, 1, 8)
    assert arrivals.total_tokens == 16


def test_a_mean_length_forgets_old_requests_one_by_one() -> None:
    arrivals = Arrivals(ArrivalPolicy(memory_requests=4.0), 0.0)
    for tokens in (10, 20, 30):
        arrivals.counted(1, 1, tokens)
    assert arrivals.tokens_per_request == pytest.approx(20.0)
    arrivals.counted(10, 10, 400)  # more than it remembers: they are all there is
    assert arrivals.tokens_per_request == pytest.approx(40.0)
