"""Replicas whose server measured itself."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from aggregator.scheduler.budget import BudgetController
from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport

CURVE = Curve(0.010, 0.004, 1e-4, 60, Rule.HINGE, 8192)
"""10 ms up to 60 tokens, then 0.1 ms more per token: 100 tokens take 14 ms."""
POLICY = ReplicaPolicy()


class HeardController(BudgetController):
    """Allows so many tokens, and keeps what it observes: a step's tokens, its time, the budget of the batch."""

    def __init__(self, allowed: int) -> None:
        self.heard: list[tuple[int, float, int]] = []
        self._allowed = self.min_tokens = allowed

    @property
    @override
    def token_budget(self) -> int:
        return self._allowed

    @property
    @override
    def at_floor(self) -> bool:
        return True

    @override
    def observe(self, step_tokens: int, step_s: float, packed_budget: int, shortest_step_s: float) -> None:
        self.heard.append((step_tokens, step_s, packed_budget))


def replica(name: str = "a", *, slower: float = 1.0, token_budget: int = 100, warm: bool = False) -> Replica:
    """A replica, `slower` times as slow as the curve says; `warm`: it has had a reply."""
    curve = replace(
        CURVE,
        floor_s=CURVE.floor_s * slower,
        fixed_s=CURVE.fixed_s * slower,
        per_token_s=CURVE.per_token_s * slower,
    )
    made = Replica(name, curve, token_budget, POLICY)
    if warm:
        made.sent("warm-up", 10, 0.0)
        made.ended("warm-up", 0.01 * slower, StepReport(10, 0.01 * slower, 0, 0.0, 0.0))
    return made
