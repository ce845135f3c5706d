"""A long load's calm stretches may be left out without a change in what comes of it; its busy ones never are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.simulate.load import Steps
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
