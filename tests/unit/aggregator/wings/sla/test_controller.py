"""From the latency target to a replica's budget."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.scheduler.budget import StepLimits
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport
from aggregator.wings.sla.controller import RecentQuantile, SlaBudgetController, SlaGoal, SloTracker

CURVE = Curve(0.004, 0.004, 1e-4, 1000, Rule.THROUGHPUT, 8192)
LIMITS = StepLimits(saturation_point=1000, step_capacity=4096)


def budget_controller(goal: SlaGoal, limits: StepLimits = LIMITS) -> SlaBudgetController:
    return SloTracker(goal).controller(limits, CURVE.time_s)


def steps(one: SlaBudgetController, count: int, slowness: float = 1.0) -> None:
    for _ in range(count):
        budget = one.token_budget
        one.observe(budget, slowness * CURVE.time_s(budget), budget, slowness * CURVE.time_s(one.min_tokens))


def test_it_rises_to_what_the_target_allows_and_a_step_holds() -> None:
    for target_s, limits, highest in [(9.0, LIMITS, 4096), (9.0, StepLimits(1000, 700), 700), (0.2, LIMITS, 1960)]:
        one = budget_controller(SlaGoal(answer_s=2.0 * target_s), limits)
        steps(one, 40)
        assert one.token_budget == pytest.approx(highest, rel=0.06)
        assert one.token_budget <= limits.step_capacity


def test_the_targets_of_an_answer_leave_room_for_the_measured_overhead() -> None:
    slo = SloTracker(SlaGoal(answer_s=0.120))
    one = slo.controller(LIMITS, CURVE.time_s)
    assert one.target_s == pytest.approx(0.060)
    for _ in range(100):
        slo.answered(0.5, 0.020)
    steps(one, 20)
    assert one.target_s == pytest.approx(0.050)
    assert CURVE.time_s(one.token_budget) == pytest.approx(0.050, rel=0.1)
    assert slo.p99_s == 0.5


def test_an_answer_cannot_be_promised_sooner_than_the_shortest_step() -> None:
    one = budget_controller(SlaGoal(answer_s=0.002))
    steps(one, 20)
    assert one.target_s == pytest.approx(CURVE.time_s(64))
    assert one.token_budget <= 2 * 64
    assert one.at_floor


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-4, 5.0)), max_size=60))
def test_the_budget_stays_within_its_bounds_and_the_engines_capacity(reports: list[tuple[int, float]]) -> None:
    one = budget_controller(SlaGoal(answer_s=0.1))
    for step_tokens, step_s in reports:
        one.observe(step_tokens, step_s, one.token_budget, CURVE.time_s(64))
        assert 64 <= one.token_budget <= 4096


def test_a_replica_without_steering_keeps_its_budget_one_with_it_follows() -> None:
    plain = Replica("a", CURVE, 1000, ReplicaPolicy())
    steered = Replica("a", CURVE, 1000, ReplicaPolicy(), budget_controller(SlaGoal(answer_s=0.1)))
    for one in (plain, steered):
        for number in range(20):
            tokens = one.token_budget
            one.sent(str(number), tokens, float(number))
            one.ended(str(number), number + 0.5, StepReport(tokens, CURVE.time_s(tokens), 0, 0.0, 0.0))
    assert plain.token_budget == 1000
    assert CURVE.time_s(steered.token_budget) == pytest.approx(0.050, rel=0.1)


def test_a_quantile_is_the_smallest_value_that_its_share_does_not_exceed() -> None:
    for share, quantile in ((0.95, 19.0), (0.99, 20.0), (1.0, 20.0), (0.5, 10.0), (0.01, 1.0)):
        recent = RecentQuantile(share, renew=1)
        for value in random.Random(1).sample(range(1, 21), 20):
            recent.observe(float(value))
        assert recent.value == quantile


def test_a_quantile_is_taken_anew_now_and_then_and_at_first_at_once() -> None:
    recent = RecentQuantile(1.0, memory=100, renew=4)
    seen: list[float] = []
    for value in range(1, 13):
        recent.observe(float(value))
        seen.append(recent.value)
    assert seen == [1, 2, 3, 3, 3, 3, 7, 7, 7, 7, 11, 11]


def test_a_quantile_is_of_the_last_512_values_taken_anew_each_sixteenth() -> None:
    least = RecentQuantile(0.001)
    for value in range(16 * 33):
        least.observe(float(value))
    assert least.value == 16 * 33 - 1 - 512


def test_the_overhead_that_is_left_room_for_is_the_p95_without_queueing() -> None:
    """Else an overload, in which answers queue for seconds, would drive the budget to its floor."""
    slo = SloTracker(SlaGoal(answer_s=0.200))
    one = slo.controller(LIMITS, CURVE.time_s)
    for number in range(512):
        slo.answered(latency_s=30.0, overhead_s=0.010 if number % 25 else 0.080)
    steps(one, 1)
    assert one.target_s == pytest.approx((0.200 - 0.010) / 2)
    for number in range(512):
        slo.answered(latency_s=30.0, overhead_s=0.010 if number % 12 else 0.080)
    steps(one, 1)
    assert one.target_s == pytest.approx((0.200 - 0.080) / 2)


def test_an_overhead_below_zero_counts_as_none() -> None:
    slo = SloTracker(SlaGoal(answer_s=0.200))
    slo.answered(0.1, -5.0)
    one = slo.controller(LIMITS, CURVE.time_s)
    assert one.target_s == pytest.approx(0.100)


def test_a_promise_is_kept_by_the_p99_of_its_answers() -> None:
    slo = SloTracker(SlaGoal(answer_s=0.200))
    for number in range(512):
        slo.answered(1.0 if number % 50 == 0 else 0.1, 0.0)
    assert slo.p99_s == 1.0
    for number in range(512):
        slo.answered(1.0 if number % 150 == 0 else 0.1, 0.0)
    assert slo.p99_s == 0.1
