"""How fast tokens leave is known from two looks that are not far apart."""

from __future__ import annotations

import pytest

from aggregator.scheduler.rates import Drain


def test_the_rate_is_what_left_between_two_looks_of_which_the_first_are_closer_together() -> None:
    drain = Drain()
    looks = ((100, 7.0), (150, 7.125), (200, 7.25), (1000, 7.5), (1100, 8.125), (1100, 8.25), (1300, 9.25))
    found = [drain.tokens_per_s(left, now_s) for left, now_s in looks]
    assert found == [None, None, 400.0, 400.0, 400.0, 900.0, 200.0]


def test_a_step_longer_than_that_is_waited_for() -> None:
    drain = Drain()
    found = [drain.tokens_per_s(1000 * (second >= 8), float(second)) for second in range(10)]
    assert found == [None] * 8 + [125.0, 125.0]


def test_what_was_measured_before_a_time_without_refusals_is_forgotten() -> None:
    drain = Drain()
    drain.tokens_per_s(0, 0.0)
    assert drain.tokens_per_s(100, 1.0) == 100.0
    assert drain.tokens_per_s(5000, 7.0) is None
    assert drain.tokens_per_s(5200, 8.0) == pytest.approx(200.0)


def test_a_rate_is_forgotten_once_nobody_was_refused_for_five_seconds() -> None:
    for pause_s, known in ((5.0, True), (5.5, False)):
        drain = Drain()
        for now_s, left in ((0.0, 0), (0.5, 100)):
            drain.tokens_per_s(left, now_s)
        assert (drain.tokens_per_s(100, 0.5 + pause_s) is not None) == known
