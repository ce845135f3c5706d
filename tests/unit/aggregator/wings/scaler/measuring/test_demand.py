"""Demand: the formula, and every edge on which an autoscaler would otherwise go wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.wings.scaler.measuring.demand import Demand, DemandPolicy, Load, StaleInputError

POLICY = DemandPolicy()
QUIET = Load(arrival_tokens_per_s=0.0, backlog_tokens=0.0, pod_tokens_per_s=1000.0, measured_s=0.0)


def at(now_s: float, load: Load) -> tuple[Load, float]:
    """A load measured just now."""
    return replace(load, measured_s=now_s), now_s


def hpa(published: float, replicas: int) -> int:
    """What the autoscaler makes of an External metric with AverageValue 1."""
    return replicas if abs(published / replicas - 1.0) <= 0.1 else math.ceil(published)


def test_zero_traffic_needs_no_replica_once_the_peak_has_passed() -> None:
    demand = Demand(POLICY)
    assert demand.publish(QUIET, 0.0) == 0.0
    assert demand.publish(*at(10.0, replace(QUIET, arrival_tokens_per_s=750.0))) == pytest.approx(1.0)
    assert demand.publish(*at(70.0, QUIET)) == pytest.approx(1.0)
    assert demand.publish(*at(70.1, QUIET)) == 0.0


def test_a_stale_input_is_an_error_and_never_zero() -> None:
    demand = Demand(POLICY)
    assert demand.publish(QUIET, 20.0) == 0.0
    with pytest.raises(StaleInputError, match=r"20\.5 s old"):
        demand.publish(QUIET, 20.5)
    with pytest.raises(StaleInputError):
        demand.publish(replace(QUIET, measured_s=math.nan), 0.0)


def test_until_a_pod_says_what_it_does_one_is_asked_for_and_none_taken() -> None:
    cold = replace(QUIET, pod_tokens_per_s=None)
    assert Demand(POLICY).publish(cold, 0.0) == 0.0
    assert Demand(POLICY).publish(replace(cold, arrival_tokens_per_s=1e6), 0.0) == 1.0
    assert Demand(POLICY).publish(replace(cold, backlog_tokens=1.0), 0.0) == 1.0
    assert Demand(POLICY).publish(replace(cold, backlog_tokens=1.0, replicas=5, ready=0), 0.0) == 5.0


def test_when_the_last_pod_goes_its_throughput_is_remembered() -> None:
    demand = Demand(POLICY)
    demand.publish(QUIET, 0.0)
    gone = replace(QUIET, pod_tokens_per_s=None, arrival_tokens_per_s=3000.0)
    assert demand.publish(gone, 1.0) == pytest.approx(4.0)


def test_a_peak_is_held_for_a_minute_and_the_highest_of_it_counts() -> None:
    demand = Demand(POLICY)
    figures = [
        demand.publish(*at(now_s, replace(QUIET, arrival_tokens_per_s=750.0 * pods)))
        for now_s, pods in [(0, 5), (15, 3), (30, 4), (45, 1), (60, 1), (75, 1), (90, 1), (105, 1)]
    ]
    assert figures == pytest.approx([5, 5, 5, 5, 5, 4, 4, 1])


def test_the_backlog_that_grows_while_pods_load_asks_for_no_more_of_them() -> None:
    """Why it is held: unheld, the same backlog would be asked for twice over."""
    demand = Demand(POLICY)
    asked = replace(QUIET, arrival_tokens_per_s=1500.0, backlog_tokens=45_000.0, replicas=2, ready=2)
    assert demand.publish(*at(0.0, asked)) == pytest.approx(4.0)
    loading = replace(asked, replicas=4, backlog_tokens=200_000.0)
    assert demand.publish(*at(15.0, loading)) == pytest.approx(4.0)
    assert Demand(POLICY).publish(*at(15.0, replace(loading, ready=4))) > 10.0
    assert demand.publish(*at(120.0, replace(loading, ready=4))) > 10.0


def test_who_begins_to_look_while_pods_load_asks_for_no_more_either() -> None:
    loading = replace(QUIET, arrival_tokens_per_s=1500.0, backlog_tokens=200_000.0, replicas=4, ready=2)
    demand = Demand(POLICY)
    assert demand.publish(*at(0.0, loading)) == pytest.approx(4.0)
    assert demand.publish(*at(61.0, replace(loading, arrival_tokens_per_s=4500.0))) == pytest.approx(6.0)
    assert demand.publish(*at(200.0, replace(loading, backlog_tokens=0.0))) == pytest.approx(2.0)
    assert demand.publish(*at(261.0, loading)) == pytest.approx(4.0)
    assert demand.publish(*at(601.0, loading)) > 10.0
    assert Demand(POLICY).publish(*at(0.0, replace(loading, ready=4))) > 10.0


def test_what_arrives_more_while_pods_load_does_ask_for_more() -> None:
    demand = Demand(POLICY)
    demand.publish(*at(0.0, replace(QUIET, arrival_tokens_per_s=1500.0, replicas=2, ready=1)))
    assert demand.publish(*at(1.0, replace(QUIET, arrival_tokens_per_s=3000.0, replicas=2, ready=1))) == pytest.approx(
        4
    )


def test_a_backlog_that_is_gone_is_not_held() -> None:
    demand = Demand(replace(POLICY, peak_hold_s=0.0))
    demand.publish(*at(0.0, replace(QUIET, backlog_tokens=90_000.0, replicas=1, ready=1)))
    assert demand.publish(*at(1.0, replace(QUIET, replicas=4, ready=1))) == 0.0


def test_a_pod_that_never_comes_holds_the_backlog_for_ten_minutes_only() -> None:
    demand = Demand(POLICY)
    stuck = replace(QUIET, replicas=2, ready=1)
    demand.publish(*at(0.0, replace(stuck, backlog_tokens=22_500.0, ready=2)))
    growing = replace(stuck, backlog_tokens=225_000.0)
    assert demand.publish(*at(10.0, growing)) < 3.0
    assert demand.publish(*at(610.0, growing)) < 3.0
    assert demand.publish(*at(611.0, growing)) == pytest.approx(10.0)


def test_over_the_objective_at_the_budgets_floor_more_pods_are_asked_for() -> None:
    load = replace(QUIET, arrival_tokens_per_s=3000.0, slo_pressure=1.5, at_floor=True)
    assert Demand(POLICY).publish(load, 0.0) == pytest.approx(6.0)
    assert Demand(POLICY).publish(replace(load, slo_pressure=9.0), 0.0) == pytest.approx(8.0)
    assert Demand(POLICY).publish(replace(load, slo_pressure=0.5), 0.0) == pytest.approx(4.0)
    assert Demand(POLICY).publish(replace(load, at_floor=False), 0.0) == pytest.approx(4.0)


def test_the_objectives_factor_is_held_while_pods_load() -> None:
    demand = Demand(POLICY)
    load = replace(QUIET, arrival_tokens_per_s=3000.0, slo_pressure=1.5, at_floor=True, replicas=4, ready=4)
    assert demand.publish(*at(0.0, load)) == pytest.approx(6.0)
    assert demand.publish(*at(15.0, replace(load, slo_pressure=2.0, replicas=6))) == pytest.approx(6.0)
    assert demand.publish(*at(90.0, replace(load, slo_pressure=2.0, replicas=6, ready=6))) == pytest.approx(8.0)


@pytest.mark.parametrize("replicas", [1, 5, 11, 20, 100, 1000])
def test_one_pod_more_than_many_gets_past_the_autoscalers_tolerance(replicas: int) -> None:
    needed = replace(QUIET, arrival_tokens_per_s=750.0 * (replicas + 0.5), replicas=replicas, ready=replicas)
    assert hpa(Demand(POLICY).publish(needed, 0.0), replicas) > replicas


@given(st.integers(1, 1000))
def test_what_just_suffices_asks_for_nothing(replicas: int) -> None:
    load = replace(QUIET, arrival_tokens_per_s=750.0 * replicas, replicas=replicas, ready=replicas)
    assert hpa(Demand(POLICY).publish(load, 0.0), replicas) == replicas


loads = st.builds(
    Load,
    arrival_tokens_per_s=st.just(0.0) | st.floats(1e-3, 1e9),
    backlog_tokens=st.just(0.0) | st.floats(1e-3, 1e12),
    pod_tokens_per_s=st.none() | st.floats(1.0, 1e6),
    measured_s=st.just(0.0),
    replicas=st.none() | st.integers(0, 1000),
    ready=st.none() | st.integers(0, 1000),
    slo_pressure=st.floats(0.0, 100.0),
    at_floor=st.booleans(),
)


@given(loads)
def test_zero_is_published_for_no_demand_only(load: Load) -> None:
    figure = Demand(POLICY).publish(load, 0.0)
    assert math.isfinite(figure)
    assert (figure > 0.0) == (load.arrival_tokens_per_s + load.backlog_tokens > 0.0)


@pytest.mark.parametrize(
    ("wrong", "edge"),
    [
        ({"arrival_tokens_per_s": -1.0}, {}),
        ({"backlog_tokens": math.nan}, {}),
        ({"slo_pressure": math.inf}, {"slo_pressure": 0.0}),
        ({"replicas": -1}, {"replicas": 0}),
        ({"ready": -1}, {"ready": 0}),
        ({"pod_tokens_per_s": 0.0}, {"pod_tokens_per_s": 0.5}),
        ({"pod_tokens_per_s": math.nan}, {}),
        ({"pod_tokens_per_s": math.inf}, {}),
    ],
)
def test_a_load_that_is_none_is_refused_and_the_smallest_is_not(wrong: dict[str, Any], edge: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not a (load|throughput)"):
        replace(QUIET, **wrong)
    assert Demand(POLICY).publish(replace(QUIET, **edge), 0.0) == 0.0


@pytest.mark.parametrize(
    ("wrong", "edge"),
    [
        ({"drain_s": 0.0}, {"drain_s": 0.5}),
        ({"drain_s": math.inf}, {}),
        ({"utilisation": 0.0}, {}),
        ({"utilisation": 1.1}, {"utilisation": 1.0}),
        ({"peak_hold_s": -1.0}, {"peak_hold_s": 0.0}),
        ({"max_age_s": 0.0}, {"max_age_s": 0.5}),
        ({"max_hold_s": math.nan}, {"max_hold_s": 0.0}),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_up_to_the_edge(wrong: dict[str, Any], edge: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        DemandPolicy(**wrong)
    assert Demand(DemandPolicy(**edge)).publish(QUIET, 0.0) == 0.0


def test_without_a_hold_the_backlog_counts_while_pods_load() -> None:
    demand = Demand(replace(POLICY, max_hold_s=0.0, peak_hold_s=0.0))
    loading = replace(QUIET, backlog_tokens=22_500.0, replicas=2, ready=1)
    demand.publish(*at(0.0, replace(loading, ready=2)))
    assert demand.publish(*at(1.0, replace(loading, backlog_tokens=45_000.0))) == pytest.approx(1.0)
    assert demand.publish(*at(1.1, replace(loading, backlog_tokens=45_000.0))) == pytest.approx(2.0)


@pytest.mark.parametrize(("pods", "there"), [(20, 20), (20, 0), (40, 20)])
def test_only_a_need_a_little_above_what_is_there_is_nudged(pods: int, there: int) -> None:
    needed = replace(QUIET, arrival_tokens_per_s=750.0 * pods, replicas=there, ready=there)
    assert Demand(POLICY).publish(needed, 0.0) == pytest.approx(pods)
