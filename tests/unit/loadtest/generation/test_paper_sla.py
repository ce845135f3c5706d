"""The paper's search does what is printed, and what it is fooled by is why production has another controller."""

from __future__ import annotations

import random

import pytest

from aggregator.scheduler.budget.controller import SlaGoal, SloTracker, StepLimits
from aggregator.scheduler.budget.sla import SlaController, SlaPolicy
from loadtest.generation.paper_sla import PaperBudgetController, PaperController, PaperPolicy
from protos.modelserver.v1.curve import Curve, Rule

POLICY = PaperPolicy(64, 4096, 4096)
CPU = Curve(0.004, 0.004, 73e-6, 463, Rule.THROUGHPUT, 8192)


class Printed:
    """Algorithm 2 of Pang et al. as it is printed, with real numbers until the last line."""

    def __init__(self, policy: PaperPolicy, target_s: float) -> None:
        self.policy = policy
        self.target_s = target_s
        self.low, self.high = float(policy.min_size), float(policy.max_size)
        self.steps: list[tuple[int, float]] = []

    def size(self, tokens: int, step_s: float, running: int) -> int:
        policy, alpha, delta = self.policy, self.policy.max_size // 8, self.policy.max_size // 8 // 4
        self.steps = [*self.steps, (tokens, step_s)][-policy.window :]
        tau = sum(step_s for _, step_s in self.steps) / len(self.steps)
        batch = sum(tokens for tokens, _ in self.steps) / len(self.steps)
        epsilon_s = policy.tolerance * self.target_s
        if tau > self.target_s + epsilon_s:
            self.high = max(batch, self.low + alpha)
            self.low = max(self.low - delta, policy.min_size)
        elif tau < self.target_s - epsilon_s:
            self.low = min(batch, self.high - alpha)
            self.high = min(self.high + delta, policy.max_size)
        else:
            self.high = min(batch + alpha // 2, policy.max_size)
            self.low = max(batch - alpha // 2, policy.min_size)
        wanted = max((self.low + self.high) // 2, running)
        return int(min(max(wanted, policy.min_size), policy.max_size))


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_it_does_what_is_printed_step_by_step(seed: int, window: int) -> None:
    chance = random.Random(seed)
    policy = PaperPolicy(100, 908, 500, window=window)
    ours, printed = PaperController(policy, 1.0), Printed(policy, 1.0)
    for _ in range(150):
        tokens, step_s = chance.randint(1, 908), chance.choice((0.4, 0.9, 0.97, 1.0, 1.03, 1.1, 2.5))
        running = chance.choice((0, 0, 0, 400))
        ours.observe(tokens, step_s, running)
        assert ours.size == printed.size(tokens, step_s, running)


def test_its_steps_are_never_less_than_one() -> None:
    assert (PaperPolicy(1, 4, 4).alpha, PaperPolicy(1, 4, 4).delta) == (1, 1)


def test_its_recentring_inside_the_tolerance_walks_down_to_the_floor_where_ours_stays() -> None:
    """Batches fill 90 % of a budget, so each recentring on them takes a tenth off."""
    paper, ours = PaperController(POLICY, 0.020), SlaController(SlaPolicy(64, 4096, 4096), 0.020)
    for _ in range(100):
        paper.observe(int(0.9 * paper.size), 0.020)
        ours.observe(int(0.9 * ours.token_budget), 0.020, ours.token_budget)
    assert paper.size <= POLICY.min_size + POLICY.alpha
    assert ours.token_budget == 4096


def test_its_maximum_with_what_runs_makes_the_size_run_away() -> None:
    """Two batches are out, so what runs is always more than one budget, however slow it is."""
    paper = PaperController(POLICY, CPU.time_s(500))
    for _ in range(100):
        paper.observe(paper.size, CPU.time_s(paper.size), 2 * paper.size)
    assert paper.size == POLICY.max_size


def test_a_replica_of_the_simulator_can_be_steered_by_it() -> None:
    budget_controller = SloTracker(SlaGoal(answer_s=0.1)).controller(
        StepLimits(1000, 4096), CPU.time_s(64), PaperBudgetController
    )
    assert budget_controller.token_budget == 1000
    budget_controller.observe(1000, 0.100, 1000, CPU.time_s(64))
    assert budget_controller.token_budget == (64 + 1000) // 2
