"""Rates: of what leaves, and the share of time that a process is busy."""

from __future__ import annotations

import pytest

from aggregator.scheduler.rates import BusyShare, Drain


def test_two_readings_in_one_moment_are_no_division_by_zero() -> None:
    busy = BusyShare()
    busy.observe(1.0, 1.0)
    assert busy.observe(1.0, 1.0) == 0.0


def test_the_busy_share_is_that_of_the_last_fifteen_seconds() -> None:
    busy = BusyShare()
    for now_s, cpu_s in ((0.0, 0.0), (1.0, 1.0), (15.9, 1.0)):
        busy.observe(now_s, cpu_s)
    assert busy.observe(16.0, 1.0) == 0.0  # what was busy is older than the window by now
    busy = BusyShare()
    for now_s, cpu_s in ((0.0, 0.0), (1.0, 1.0), (14.9, 1.0)):
        busy.observe(now_s, cpu_s)
    assert busy.observe(15.9, 1.0) == pytest.approx(1 / 15.9)


def test_rare_readings_still_span_the_window() -> None:
    busy = BusyShare()
    shares = [busy.observe(60.0 * minute, cpu_s) for minute, cpu_s in enumerate((0.0, 15.0, 45.0, 45.0, 51.0))]
    assert shares == [0.0, 0.25, 0.5, 0.0, 0.1]


@pytest.mark.parametrize(("cpu_s", "share"), [(30.0, 1.0), (-5.0, 0.0)])
def test_clocks_that_disagree_give_a_share_all_the_same(cpu_s: float, share: float) -> None:
    busy = BusyShare()
    busy.observe(0.0, 0.0)
    assert busy.observe(10.0, cpu_s) == share


def test_the_rate_is_what_left_between_two_looks_the_first_ones_closer() -> None:
    drain = Drain()
    looks = ((100, 7.0), (150, 7.125), (200, 7.25), (1000, 7.5), (1100, 8.125), (1100, 8.25), (1300, 9.25))
    found = [drain.tokens_per_s(left, now_s) for left, now_s in looks]
    assert found == [None, None, 400.0, 400.0, 400.0, 900.0, 200.0]


def test_a_step_longer_than_that_is_waited_for() -> None:
    drain = Drain()
    found = [drain.tokens_per_s(1000 * (second >= 8), float(second)) for second in range(10)]
    assert found == [None] * 8 + [125.0, 125.0]


def test_a_rate_is_forgotten_once_nobody_was_refused_for_five_seconds() -> None:
    for pause_s, known in ((5.0, True), (5.5, False)):
        drain = Drain()
        for now_s, left in ((0.0, 0), (0.5, 100)):
            drain.tokens_per_s(left, now_s)
        assert (drain.tokens_per_s(100, 0.5 + pause_s) is not None) == known
