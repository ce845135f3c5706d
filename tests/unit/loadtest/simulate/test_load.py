"""Arrivals and lengths."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.simulate.load import (
    NQ_COUNTS,
    TRACE_S,
    Arrivals,
    Bursts,
    Day,
    Lengths,
    QueryKind,
    Replay,
    Steady,
    Steps,
    trace,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize(
    "arrivals", [Steady(50.0), Steps(((0.0, 20.0), (10.0, 80.0))), Bursts(30.0), Day(10.0, 90.0, 20.0), Replay(3)]
)
def test_arrivals_are_sorted_within_their_time_and_the_same_for_one_seed(arrivals: Arrivals) -> None:
    times = arrivals.draw(20.0, rng())
    assert np.array_equal(times, arrivals.draw(20.0, rng()))
    assert np.array_equal(times, np.sort(times))
    assert times.min() >= 0.0
    assert times.max() <= 20.0


def test_a_steady_process_has_its_rate_and_a_poisson_process_spread() -> None:
    counts = np.histogram(Steady(50.0).draw(400.0, rng()), bins=400)[0]
    assert counts.mean() == pytest.approx(50.0, rel=0.03)
    assert counts.var() == pytest.approx(50.0, rel=0.2)


def test_a_step_changes_the_rate_at_its_time() -> None:
    times = Steps(((0.0, 20.0), (50.0, 200.0))).draw(100.0, rng())
    assert (times < 50.0).sum() == pytest.approx(1000, rel=0.1)
    assert (times >= 50.0).sum() == pytest.approx(10_000, rel=0.1)


def test_bursts_raise_the_mean_rate_by_their_share() -> None:
    times = Bursts(100.0, factor=3.0, burst_s=1.0, every_s=4.0).draw(400.0, rng())
    assert len(times) / 400.0 == pytest.approx(150.0, rel=0.05)


def test_the_trace_is_an_hour_of_8819_arrivals_and_copies_of_it_add_up() -> None:
    hour = trace()
    assert (len(hour), hour[0]) == (8819, 0.0)
    assert 3000.0 < hour[-1] < TRACE_S
    assert len(Replay(4).draw(TRACE_S, rng())) == 4 * 8819


def test_questions_have_the_lengths_of_the_bundled_ones() -> None:
    drawn = Lengths().draw(50_000, rng())
    assert drawn.mean() == pytest.approx(sum(n * c for n, c in NQ_COUNTS.items()) / 3610, rel=0.01)
    assert sum(NQ_COUNTS.values()) == 3610


def test_skewed_lengths_lie_between_3_and_60_tokens() -> None:
    drawn = Lengths(QueryKind.LOGNORMAL).draw(50_000, rng())
    assert (drawn.min(), drawn.max()) == (3, 60)
    assert drawn.mean() > np.median(drawn)


def test_documents_are_mixed_in_by_their_share() -> None:
    drawn = Lengths(documents=0.2).draw(50_000, rng())
    assert (drawn >= 64).mean() == pytest.approx(0.2, rel=0.05)
    assert drawn.max() <= 512
    assert set(Lengths(QueryKind.FIXED, fixed_tokens=7).draw(10, rng()).tolist()) == {7}
