"""A generating engine in virtual time, with answers known beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.lab.generation.decode import DecodeCurve, through
from loadtest.lab.generation.engine import Server, generate
from loadtest.lab.generation.limits import Fixed
from loadtest.lab.generation.work import Work, at_once

CURVE = DecodeCurve(0.010, 0.001, 0.0001)


def work(*outputs: int, prompt: int = 10) -> Work:
    return at_once(np.full(len(outputs), prompt), np.array(outputs))


def test_a_line_goes_through_both_points_and_must_rise() -> None:
    curve = through((100, 0.05), (230, 0.08))
    assert [curve.time_s(100), curve.time_s(230)] == pytest.approx([0.05, 0.08])
    assert curve.slower(2.0).time_s(100, 50) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no curve"):
        through((100, 0.05), (230, 0.05))


def test_two_requests_alone_together_take_as_many_steps_as_the_longer_one() -> None:
    found = generate(Server(CURVE), Fixed(2), work(2, 3))
    # Two steps of two, the first of which reads 20 tokens, and one step of one.
    assert found.seconds == pytest.approx(0.014 + 0.012 + 0.011)
    assert (found.steps, found.tokens) == (3, 5)
    assert found.latency_s.tolist() == pytest.approx([0.026, 0.037])
    assert found.step_s == pytest.approx((2 * 0.014 + 2 * 0.012 + 0.011) / 5)


def test_a_request_that_is_done_makes_room_at_once_and_in_a_static_batch_only_with_all_others() -> None:
    continuous = generate(Server(CURVE), Fixed(2), work(1, 4, 3))
    static = generate(Server(CURVE, continuous=False), Fixed(2), work(1, 4, 3))
    assert (continuous.steps, static.steps) == (4, 7)
    assert static.wait_s.tolist() == pytest.approx([0.0, 0.0, 0.014 + 3 * 0.012])  # its steps cost as much as full ones


def test_what_overflows_the_cache_is_sent_back_and_read_again() -> None:
    found = generate(Server(CURVE, capacity_tokens=30), Fixed(2), work(8, 8))
    assert found.overflows == 1  # after five steps of two there are 20 + 10 tokens, after six 32
    # The second one waits for the first one's two steps, then for its own two, with its 16 tokens read again.
    assert found.steps == 10
    assert found.seconds == pytest.approx(0.014 + 5 * 0.012 + 2 * 0.011 + 0.0126 + 0.011)
    assert found.tokens_per_s == pytest.approx(16 / found.seconds)
