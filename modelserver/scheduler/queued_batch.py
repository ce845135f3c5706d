"""A batch that waits for its step, and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from modelserver.engines.engine import Matrix
from modelserver.errors import ModelServerError
from modelserver.scheduler.merge import Composition
from modelserver.service.batch import Batch


@dataclass(frozen=True, slots=True)
class StepReport:
    """One engine step, or the several that a batch took; times in seconds.

    Beside it `decoding` sequences gained a token. `embed_room_tokens`: as `GenerateStep` reports it.
    """

    tokens: int
    queries: int
    batches: int
    composition: Composition
    duration_s: float
    idle_before_s: float
    decoding: int = 0
    embed_room_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What one batch gets back: float32 [valid queries, dimensions], its step, and how long it waited ready.

    `engine_s`: its part of the steps' time.
    """

    matrix: Matrix
    step: StepReport
    staged_s: float
    engine_s: float


Outcome = Answer | ModelServerError


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """One batch in the queue, `deliver` is called once with its outcome, on the engine's thread.

    `ready_s` is when it began to wait, `deadline_s` the caller's deadline, both on the engine loop's clock.
    """

    batch: Batch
    deliver: Callable[[Outcome], None]
    ready_s: float
    deadline_s: float = math.inf
    isolated: bool = False
    withdrawn: bool = False

    @property
    def token_count(self) -> int:
        return self.batch.token_count

    @property
    def query_count(self) -> int:
        return self.batch.lengths.size

    @property
    def max_step_tokens(self) -> int:
        return self.batch.max_step_tokens

    @property
    def alone(self) -> bool:
        """Whether it is never merged: by its sender's wish, or because a merged step failed with it."""
        return self.batch.alone or self.isolated

    def wanted(self, now_s: float) -> bool:
        return not self.withdrawn and now_s < self.deadline_s
