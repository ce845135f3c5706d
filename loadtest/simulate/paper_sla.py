"""Algorithm 2 of Pang et al.: the bounds of a search move by fixed amounts with each step's time."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from typing_extensions import override

from aggregator.scheduler.budget import StepLimits
from aggregator.wings.sla.controller import RecentQuantile, SlaBudgetController, SlaGoal


@dataclass(frozen=True, slots=True)
class PaperPolicy:
    """B_min, B_max and the first batch size; epsilon as a share of the target; over how many steps means are taken."""

    min_size: int
    max_size: int
    start_size: int
    tolerance: float = 0.05
    window: int = 4

    @property
    def alpha(self) -> int:
        """The least width of the search interval."""
        return max(1, self.max_size // 8)

    @property
    def delta(self) -> int:
        """How far the search widens in one step."""
        return max(1, self.alpha // 4)


class PaperController:
    """The batch size that brings steps to their target time, D_SLA, as the paper searches for it."""

    def __init__(self, policy: PaperPolicy, target_s: float) -> None:
        self._policy = policy
        self._target_s = target_s
        self._recent: deque[tuple[int, float]] = deque(maxlen=policy.window)
        self._low: float = policy.min_size
        self._high: float = policy.max_size
        self.size = policy.start_size

    def retarget(self, target_s: float) -> None:
        """Take a new target, by which the next step is judged."""
        self._target_s = target_s

    def observe(self, size: int, duration_s: float, running: int = 0) -> None:
        """Learn from a step of that size; `running` is the paper's N^d, below which the size does not fall."""
        policy = self._policy
        self._recent.append((size, duration_s))
        latency_s = sum(duration_s for _, duration_s in self._recent) / len(self._recent)
        batch = sum(size for size, _ in self._recent) / len(self._recent)
        margin_s = policy.tolerance * self._target_s
        if latency_s > self._target_s + margin_s:
            self._high = max(batch, self._low + policy.alpha)
            self._low = max(self._low - policy.delta, policy.min_size)
        elif latency_s < self._target_s - margin_s:
            self._low = min(batch, self._high - policy.alpha)
            self._high = min(self._high + policy.delta, policy.max_size)
        else:
            self._high = min(batch + policy.alpha // 2, policy.max_size)
            self._low = max(batch - policy.alpha // 2, policy.min_size)
        wanted = max((self._low + self._high) / 2, running)
        self.size = min(max(math.floor(wanted), policy.min_size), policy.max_size)


class PaperBudgetController(SlaBudgetController):
    """One replica's budget as the paper's search has it, with tokens for requests, up to the saturation point."""

    def __init__(self, goal: SlaGoal, limits: StepLimits, shortest_step_s: float, overhead: RecentQuantile) -> None:
        super().__init__(goal, limits, shortest_step_s, overhead)
        most = limits.saturation_point
        self._paper = PaperController(PaperPolicy(min(self.min_tokens, most), most, most), self.target_s)

    @property
    @override
    def token_budget(self) -> int:
        return self._paper.size

    @override
    def observe(self, step_tokens: int, step_s: float, packed_budget: int, shortest_step_s: float) -> None:
        super().observe(step_tokens, step_s, packed_budget, shortest_step_s)
        self._paper.retarget(self.target_s)
        self._paper.observe(step_tokens, step_s)
