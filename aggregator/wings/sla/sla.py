"""Set one replica's token budget so that an engine step takes the time that the service level leaves for it.

Algorithm 2 of Pang, Li and Wang ("Optimizing LLM Inference Throughput via Memory-aware and SLA-constrained Dynamic
Batching") moves its bounds by fixed amounts, so it oscillates around a small budget or takes hundreds of steps to
follow a pod that changes speed. This controller uses a property of every latency curve: tokens per second never fall as
steps grow. So a step of b tokens that took t seconds bounds the right budget for a target D by b * D / t: from above if
the step was too slow, from below if it was too fast. Moving to that bound cannot overshoot.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_MIN_EVIDENCE = 4  # steps, before a quantile of theirs decides


@dataclass(frozen=True, slots=True)
class SlaPolicy:
    """Settings of one replica's controller: budgets in tokens, and shares.

    `min_tokens` should be at least the longest valid input; longer inputs go alone. `max_tokens`: what an engine step
    holds. `start_tokens`: the saturation point. `tolerance`: the dead band around the target, as a share of it. `fill`:
    the share of its budget that a step must hold to raise the budget.
    """

    min_tokens: int
    max_tokens: int
    start_tokens: int
    tolerance: float = 0.05
    fill: float = 0.8
    window: int = 6

    def __post_init__(self) -> None:
        """Raise ValueError if the budgets are out of order or a share is out of range."""
        if not 1 <= self.min_tokens <= self.start_tokens <= self.max_tokens:
            raise ValueError(f"out of order: {self.min_tokens} <= {self.start_tokens} <= {self.max_tokens} tokens")
        if not (0.0 < self.tolerance < 1.0 and 0.0 < self.fill <= 1.0):
            raise ValueError(f"tolerance and fill must lie between 0 and 1, got {self.tolerance} and {self.fill}")
        if self.window < _MIN_EVIDENCE:
            raise ValueError(f"too short: {self.window} steps")


def step_target_s(sla_s: float, overhead_p95_s: float, shortest_step_s: float) -> float:
    """Seconds that one engine step may take: (SLA - o) / 2, as a request waits for half a step of two and then runs.

    `overhead_p95_s` (o) is the p95 of network, tokenizing, decoding and replying, **without queueing**: in an overload,
    queueing would lower the budget to its minimum, where the replica is slowest, and it would stay there.
    `shortest_step_s` is the replica's time at its smallest budget; the target is never below it. Raises ValueError for
    an SLA that is not positive or an overhead that is negative.
    """
    if not (0.0 < sla_s < math.inf and 0.0 <= overhead_p95_s < math.inf):
        raise ValueError(f"not times: SLA {sla_s} s, overhead {overhead_p95_s} s")
    return max(shortest_step_s, (sla_s - overhead_p95_s) / 2.0)


@dataclass(frozen=True, slots=True)
class _Step:
    tokens: int
    duration_s: float
    packed_budget: int


class SlaController:
    """One replica's token budget by feedback; its state is soft, so a restart costs a few steps of warm-up.

    It does not move inside the tolerance. Each mean leaves out its largest and smallest value, so one outlier in six
    counts for nothing. Steps longer than the budget they were packed for (one oversized input) are ignored.
    """

    __slots__ = ("_filled", "_policy", "_recent", "_target_s", "_token_budget")

    def __init__(self, policy: SlaPolicy, target_s: float) -> None:
        self._policy = policy
        self._token_budget = policy.start_tokens
        self._target_s = _checked(target_s)
        self._recent: deque[_Step] = deque(maxlen=policy.window)
        self._filled: deque[_Step] = deque(maxlen=policy.window)

    @property
    def token_budget(self) -> int:
        """Tokens that the next batch may hold; always within [min_tokens, max_tokens]."""
        return self._token_budget

    @property
    def target_s(self) -> float:
        """Seconds that a step should take (D)."""
        return self._target_s

    @property
    def at_floor(self) -> bool:
        """Whether the budget is at its minimum, so that only more pods make steps faster."""
        near_tokens = max(1, self._policy.start_tokens // 8)
        return self._token_budget <= self._policy.min_tokens + near_tokens

    def retarget(self, target_s: float) -> None:
        """Set a new target D in seconds (the overhead changed); it applies from the next step.

        Raises ValueError if it is not positive and finite.
        """
        self._target_s = _checked(target_s)

    def observe(self, step_tokens: int, step_duration_s: float, packed_budget: int) -> None:
        """Learn from one engine step of `step_tokens` tokens (merged batches included), and set the next budget.

        `packed_budget` is the budget that its batch was packed for, which may be an older one. A step that is at least
        `fill` full can raise and lower the budget. An emptier step can only lower it, and only if the latest steps
        together were too slow: low load says nothing about larger steps, and a single slow step says nothing. A step
        larger than its budget is ignored, and so is a duration that is not positive and finite.
        """
        if not 1 <= step_tokens <= packed_budget or not 0.0 < step_duration_s < math.inf:
            return
        step = _Step(step_tokens, step_duration_s, packed_budget)
        self._recent.append(step)
        if step_tokens >= self._policy.fill * packed_budget:
            self._judge_filled(step)
        else:
            self._judge_unfilled()

    def _judge_filled(self, step: _Step) -> None:
        self._filled.append(step)
        if len(self._filled) < _MIN_EVIDENCE:
            return
        # How long a step of the current budget takes, if it is as full as recent ones.
        step_s = self._token_budget * _mean(step.duration_s / step.packed_budget for step in self._filled)
        bound = self._target_s / _mean(step.duration_s / step.tokens for step in self._filled)
        if step_s > self._target_s * (1.0 + self._policy.tolerance):
            self._move_to(min(bound, self._token_budget))
        elif bound * (1.0 - self._policy.tolerance) > self._token_budget:
            self._move_to(bound)

    def _judge_unfilled(self) -> None:
        if len(self._recent) < _MIN_EVIDENCE:
            return
        if _mean(step.duration_s for step in self._recent) <= self._target_s * (1.0 + self._policy.tolerance):
            return
        bound = self._target_s / _mean(step.duration_s / step.tokens for step in self._recent)
        self._move_to(min(bound, self._token_budget))

    def _move_to(self, token_budget: float) -> None:
        self._token_budget = min(max(math.floor(token_budget), self._policy.min_tokens), self._policy.max_tokens)


def _checked(target_s: float) -> float:
    if not 0.0 < target_s < math.inf:
        raise ValueError(f"not a target: {target_s} s")
    return target_s


def _mean(values: Iterable[float]) -> float:
    """The mean without the largest and the smallest value."""
    inner = sorted(values)[1:-1]
    return sum(inner) / len(inner)
