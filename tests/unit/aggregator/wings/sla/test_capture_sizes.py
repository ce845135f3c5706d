"""Budgets by a latency target, and the sizes that a model server has CUDA graphs for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from aggregator.scheduler.budget import StepLimits
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport
from aggregator.wings.sla.controller import RecentQuantile, SlaBudgetController, SlaGoal

SIZES = (256, 512, 1024, 2048)
FLAT = Curve(0.01, 0.01, 0.0, 700, Rule.FLAT, 4096, capture_sizes=SIZES)
LINE = Curve(0.0, 0.0005, 1e-5, 700, Rule.THROUGHPUT, 4096, capture_sizes=SIZES)
JUMP = Curve(0.0, 0.00033, 0.309e-6, 3072, Rule.THROUGHPUT, 8192, capture_sizes=(1024, 2048, 3072, 4096), eager_s=0.002)
"""As MiniLM's on an H200 is estimated: graphs up to 4,096 tokens, and 2 ms of launches above."""


def steered(curve: Curve, answer_s: float, steps: int = 200) -> list[int]:
    """The budgets of a replica whose server computes full steps as the curve says."""
    goal = SlaGoal(answer_s, min_tokens=16)
    controller = SlaBudgetController(goal, StepLimits(700, 4096), curve.time_s(16), RecentQuantile(0.95))
    server = Replica("a:1", curve, 4096, ReplicaPolicy(), controller, capacity=4096)
    budgets: list[int] = []
    now_s = 0.0
    for _ in range(steps):
        budget = server.token_budget
        budgets.append(budget)
        server.sent("batch", budget, now_s)
        now_s += curve.time_s(budget)
        server.ended("batch", now_s, StepReport(budget, curve.time_s(budget), 0, 0.0, 0.0))
    return budgets


def test_a_latency_target_puts_the_budget_at_the_largest_size_meeting_it() -> None:
    for size, larger in pairwise(SIZES):
        between_s = (LINE.time_s(size) + LINE.time_s(larger)) / 2
        assert set(steered(LINE, 2 * between_s)[-50:]) == {size}


def test_on_a_flat_curve_a_latency_target_lets_the_budget_pass_every_size() -> None:
    assert steered(FLAT, 0.024)[-1] > SIZES[-1]


@pytest.mark.parametrize("answer_s", [0.0028, 0.0034, 0.0038, 0.00395, 0.00405, 0.0043, 0.0055, 0.008])
def test_a_controller_steered_to_any_target_chooses_no_budget_above_it(answer_s: float) -> None:
    for budget in steered(JUMP, answer_s)[-50:]:
        assert not 4096 < budget < 5000
        assert JUMP.time_s(budget) <= 1.05 * answer_s / 2
