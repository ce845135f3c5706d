"""Set a replica's token budget from the service level: a target for its steps, a controller, the engine's capacity."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from aggregator.scheduler.budget import BudgetController, ServiceLevel, StepLimits
from aggregator.wings.sla.sla import SlaController, SlaPolicy, step_target_s


@dataclass(frozen=True, slots=True)
class SlaGoal:
    """The service level: seconds of a whole answer.

    `min_tokens` is the smallest budget: at that budget, longer inputs go alone.
    """

    answer_s: float
    min_tokens: int = 64


class RecentQuantile:
    """A quantile of the latest `memory` values, sorted again after every `renew` of them; 0 before any."""

    __slots__ = ("_renew", "_share", "_since", "_values", "value")

    def __init__(self, share: float, memory: int = 512, renew: int = 16) -> None:
        self._share = share
        self._renew = renew
        self._values: deque[float] = deque(maxlen=memory)
        self._since = 0
        self.value = 0.0

    def observe(self, value: float) -> None:
        self._values.append(value)
        self._since += 1
        if self._since >= self._renew or len(self._values) < self._renew:
            self._since = 0
            ordered = sorted(self._values)
            self.value = ordered[math.ceil(self._share * len(ordered)) - 1]


class SlaBudgetController(BudgetController):
    """One replica's budget, so that a step takes the time that the goal leaves for it."""

    def __init__(self, goal: SlaGoal, limits: StepLimits, shortest_step_s: float, overhead: RecentQuantile) -> None:
        """`overhead`: the live p95 of an answer's time without queueing and step."""
        self.goal = goal
        self._overhead = overhead
        highest = limits.step_capacity
        self.min_tokens = min(goal.min_tokens, highest)
        start = min(max(limits.saturation_point, self.min_tokens), highest)
        target_s = step_target_s(goal.answer_s, overhead.value, shortest_step_s)
        self._controller = SlaController(SlaPolicy(self.min_tokens, highest, start), target_s)

    @property
    @override
    def token_budget(self) -> int:
        return self._controller.token_budget

    @property
    def target_s(self) -> float:
        return self._controller.target_s

    @property
    @override
    def at_floor(self) -> bool:
        return self._controller.at_floor

    @override
    def observe(self, step_tokens: int, step_s: float, packed_budget: int, shortest_step_s: float) -> None:
        """No target is shorter than `shortest_step_s`."""
        self._controller.retarget(step_target_s(self.goal.answer_s, self._overhead.value, shortest_step_s))
        self._controller.observe(step_tokens, step_s, packed_budget)


class SloTracker(ServiceLevel):
    """The service level of one model revision; its replicas have controllers of a `kind`."""

    def __init__(self, goal: SlaGoal, kind: type[SlaBudgetController] = SlaBudgetController) -> None:
        self.goal_s = goal.answer_s
        self._goal = goal
        self._kind = kind
        self._overhead = RecentQuantile(0.95)
        self._latency = RecentQuantile(0.99)

    @property
    @override
    def p99_s(self) -> float:
        return self._latency.value

    @override
    def answered(self, latency_s: float, overhead_s: float) -> None:
        self._latency.observe(latency_s)
        self._overhead.observe(max(0.0, overhead_s))

    @override
    def controller(self, limits: StepLimits, step_time_s: Callable[[int], float]) -> SlaBudgetController:
        return self._kind(self._goal, limits, step_time_s(self._goal.min_tokens), self._overhead)
