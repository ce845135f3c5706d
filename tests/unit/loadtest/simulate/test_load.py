"""Arrivals and lengths."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.simulate.load import (
    NQ_COUNTS,
    TRACE_S,
    Lengths,
    Replay,
    trace,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_the_trace_is_an_hour_of_8819_arrivals_and_copies_of_it_add_up() -> None:
    hour = trace()
    assert (len(hour), hour[0]) == (8819, 0.0)
    assert 3000.0 < hour[-1] < TRACE_S
    assert len(Replay(4).draw(TRACE_S, rng())) == 4 * 8819


def test_questions_have_the_lengths_of_the_bundled_ones() -> None:
    drawn = Lengths().draw(50_000, rng())
    assert drawn.mean() == pytest.approx(sum(n * c for n, c in NQ_COUNTS.items()) / 3610, rel=0.01)
    assert sum(NQ_COUNTS.values()) == 3610
