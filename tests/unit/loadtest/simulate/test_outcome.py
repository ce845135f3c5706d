"""A long load's calm stretches may be left out without a change in what comes of it; its busy ones never are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadtest.simulate.load import Steps
from loadtest.simulate.outcome import STRETCH_S, Stretches
from loadtest.simulate.scaling import Autoscale, HpaPolicy
from loadtest.simulate.scenario import Kind, Policy, Scenario
from loadtest.simulate.simulation import simulate

LOAD = Scenario(
    "day",
    Steps(((0.0, 10.0), (600.0, 600.0), (660.0, 10.0))),
    1200.0,
    curve="minilm-cpu",
    slo_s=0.1,
    warm_up_s=0.0,
    sample_s=60.0,
    autoscale=Autoscale(HpaPolicy(max_replicas=4)),
)


@pytest.mark.parametrize("kind", [Kind.OURS, Kind.SEQUENTIAL])
def test_a_load_with_a_burst_comes_out_alike_when_few_calm_stretches_are_simulated(kind: Kind) -> None:
    whole, part = (simulate(replace(LOAD, calm_share=share), Policy(kind)) for share in (1.0, 0.3))
    assert part.arrived == whole.arrived
    assert part.answered == pytest.approx(whole.answered, rel=0.01)
    assert part.in_time == pytest.approx(whole.in_time, abs=0.02)
    assert part.p50_s == pytest.approx(whole.p50_s, rel=0.1)
    assert part.p99_s == pytest.approx(whole.p99_s, rel=0.1)
    assert part.pod_s == pytest.approx(whole.pod_s, rel=0.05)


def stretches(share: float = 0.0) -> Stretches:
    """Four: 60 tokens in one second of each but the third, which brings 600."""
    times = np.arange(4, dtype=np.float64) * STRETCH_S + 5.0
    return Stretches(share, times, np.array([60, 60, 600, 60]), np.random.default_rng(1))


def test_a_stretch_is_left_out_unless_it_is_the_first_of_its_kind_or_brings_much_or_finds_much() -> None:
    each = stretches()
    left_out = [each.leaves_out(number, 0, 1000.0) for number in range(3)]
    assert left_out == [False, True, False]
    assert not each.leaves_out(3, 200, 1000.0), "0.2 s of work waits"
    assert stretches(1.0).leaves_out(1, 0, 1000.0) is False


def test_calm_stretches_that_are_simulated_stand_for_all_calm_ones_and_busy_ones_for_themselves() -> None:
    each = stretches()
    for number in range(4):
        each.leaves_out(number, 0, 1000.0)
    assert each.weights(np.array([5.0, 65.0])).tolist() == [3.0, 1.0]
