"""Steps that are taken again as they were elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.simulate.clock import Noise
from loadtest.simulate.curves import step_times
from protos.modelserver.v1.curve import Curve, Rule

CURVE = Curve(0.010, 0.002, 0.0002, 100, Rule.THROUGHPUT, 1000)


def test_each_step_takes_what_it_took_when_all_come_again_in_their_order() -> None:
    rng = np.random.default_rng(1)
    steps = [(int(tokens), float(took_s)) for tokens, took_s in rng.uniform((10, 0.01), (400, 0.1), (200, 2))]
    noise = Noise(rng, 0.05, step_times(steps, CURVE))
    for _ in range(2):
        again_s = [CURVE.time_s(tokens) * noise.factor(tokens) for tokens, _ in steps]
        assert again_s == pytest.approx([took_s for _, took_s in steps])


def test_a_size_keeps_its_own_usual_time_whichever_step_it_takes_the_scatter_of() -> None:
    steps = [(tokens, 0.001 * tokens * CURVE.time_s(tokens)) for tokens in range(100, 500)]
    known = step_times(steps, CURVE)
    assert known.factors == pytest.approx([1.0] * 400, rel=0.2)
    assert [known.usual_factor(tokens) for tokens in (200, 300, 400)] == pytest.approx([0.2, 0.3, 0.4], rel=0.05)
    assert known.usual_factor(10) == min(known.usual)
    assert known.usual_factor(900) == max(known.usual)
