"""A hook for token budgets: by default a replica's is fixed, and answers have no target. `wings/sla` has both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of a model server, in tokens: its saturation point, and the capacity of a step."""

    saturation_point: int
    step_capacity: int


class BudgetController(ABC):
    """The tokens that one replica's steps may hold, updated with every step that its server reports.

    `min_tokens`: the smallest budget.
    """

    min_tokens: int

    @property
    @abstractmethod
    def token_budget(self) -> int:
        """Tokens that the next batch may hold."""

    @property
    @abstractmethod
    def at_floor(self) -> bool:
        """Whether only more servers can make answers faster."""

    @abstractmethod
    def observe(self, step_tokens: int, step_s: float, packed_budget: int, shortest_step_s: float) -> None:
        """Learn from one step of a batch that was packed for `packed_budget` tokens.

        `shortest_step_s` is what a step of `min_tokens` takes now.
        """


class ServiceLevel(ABC):
    """The latency target of one model revision, and how recent answers of all replicas met it.

    `goal_s`: seconds of a whole answer.
    """

    goal_s: float

    @property
    @abstractmethod
    def p99_s(self) -> float:
        """Recent p99 of whole answers, queueing included; 0 before any."""

    @abstractmethod
    def answered(self, latency_s: float, overhead_s: float) -> None:
        """An answer was delivered; `overhead_s` is its time without queueing and engine step."""

    @abstractmethod
    def controller(self, limits: StepLimits, step_time_s: Callable[[int], float]) -> BudgetController:
        """A budget controller for one replica; `step_time_s` gives the seconds of a step by its tokens, as measured."""


NewServiceLevel = Callable[[], ServiceLevel]
"""Makes the service level of a model revision."""
