"""Latencies of generation in virtual time: from a request's arrival to its last token."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.simulate.generation.engine import DecodeCurve, Server, Work, generate
from loadtest.simulate.generation.lengths_vary import RATES, Way, latency
from loadtest.simulate.generation.limits import Fixed


def test_a_latency_is_the_wait_and_a_step_for_each_token() -> None:
    server = Server(DecodeCurve(1.0, 0.0))
    found = generate(server, Fixed(1), Work([0.0, 0.0, 10.0], [1, 1, 1], [2, 3, 1]))
    assert found.latency_s.tolist() == [2.0, 5.0, 1.0]
    assert (found.latency_s >= found.wait_s).all()


@pytest.mark.parametrize("per_s", RATES)
def test_continuous_batches_are_faster_at_every_percentile(per_s: float) -> None:
    static, paged = (np.percentile(latency(way, per_s).latency_s, (25, 50, 90, 99)) for way in (Way.STATIC, Way.PAGED))
    assert (paged < 0.6 * static).all()
