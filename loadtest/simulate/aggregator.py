"""What an aggregator does in the simulation, whichever policy it follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Priority


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """One batch, `over` once it came back or failed; `body` is the aggregator's own. Times are virtual seconds."""

    aggregator: int
    pod: int
    body: Any
    token_count: int
    query_count: int
    token_budget: int
    max_step_tokens: int
    alone: bool
    timeout_s: float
    arrived_s: float = 0.0
    over: bool = False


class Aggregator(Protocol):
    """One aggregator. Times are virtual seconds; pods are known by their numbers."""

    expired: int
    """Queries given up because their deadline passed before they were sent."""

    @property
    def held_tokens(self) -> int:
        """Tokens taken in and not answered."""
        ...

    def put(
        self, now_s: float, arrived_s: float, deadline_s: float, token_count: int, priority: Priority = ...
    ) -> bool:
        """Take a query in; False when it is refused for lack of room."""
        ...

    def due(self, now_s: float) -> tuple[Sequence[InFlightBatch], float]:
        """The batches to send now, and when to ask again."""
        ...

    @property
    def waits(self) -> bool:
        """Whether a further query can change nothing before that time, or before a batch comes back."""
        ...

    def done(self, batch: InFlightBatch, report: StepReport, now_s: float) -> Sequence[float]:
        """A batch came back; the times at which the queries came that it answers."""
        ...

    def failed(self, batch: InFlightBatch, now_s: float, jitter: float) -> None:
        """A batch was lost with its pod, or timed out."""
        ...

    def join(self, pod: int) -> None:
        """A pod is ready."""
        ...

    def leave(self, pod: int) -> None:
        """A pod takes no further batches; those that are out come back or fail."""
        ...

    def speeds(self) -> list[tuple[int, float]]:
        """Of each replica the token budget and the predicted seconds of a step that fills it."""
        ...

    def at_floor(self) -> bool:
        """Whether every budget is as small as it may be."""
        ...
