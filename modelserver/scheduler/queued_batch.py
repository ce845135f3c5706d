"""A batch that waits for its step, the choice of a step's batches (algorithms §2), and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from modelserver.engines.engine import Matrix
from modelserver.errors import ModelServerError
from modelserver.service.batch import Batch


class Composition(StrEnum):
    """How a step came about; a metric's label."""

    ISOLATED = "isolated"
    SINGLE = "single"
    MERGED = "merged"
    MIXED = "mixed"


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
    """The result of one batch: float32 [rows of valid queries, dimensions], its step, and how long it waited ready.

    `engine_s`: its part of the steps' time. `broken` bool [rows]: the rows that are no result; None: all are.
    """

    matrix: Matrix
    step: StepReport
    staged_s: float
    engine_s: float
    broken: npt.NDArray[np.bool_] | None = None


Outcome = Answer | ModelServerError


class Unclaimed:
    """The engine's seconds that no answer reports: of failed steps, and of callers that had left. Any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        with self._lock:
            self._seconds += seconds

    def take(self) -> float:
        """The seconds since the last call."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """One batch in the queue, `deliver` is called once with its outcome, on the engine's thread.

    `ready_s` is when it began to wait, `deadline_s` the caller's deadline, both on the engine loop's clock.
    """

    batch: Batch
    deliver: Callable[[Outcome], None]
    ready_s: float
    deadline_s: float = math.inf
    failed_merged: bool = False
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
    def isolated(self) -> bool:
        """Whether it is never merged: by its sender's wish, or because a merged step failed with it."""
        return self.batch.isolated or self.failed_merged

    def wanted(self, now_s: float) -> bool:
        return not self.withdrawn and now_s < self.deadline_s


class Mergeable(Protocol):
    """A batch, as the choice sees it: sizes, the sender's budget, and whether the batch is isolated.

    A Protocol, because the simulator's batches have no bytes, and are chosen by the same rule as a `QueuedBatch`.
    """

    @property
    def token_count(self) -> int: ...

    @property
    def query_count(self) -> int: ...

    @property
    def max_step_tokens(self) -> int: ...

    @property
    def isolated(self) -> bool: ...


M = TypeVar("M", bound=Mergeable)


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """The batches of one engine step."""

    step_tokens: int
    step_queries: int


@dataclass(frozen=True, slots=True)
class Selection(Generic[M]):
    """The batches of one step, in the order of their arrival, and how they came together."""

    batches: tuple[M, ...]
    composition: Composition


def select(waiting: Iterable[M], limits: MergeLimits) -> Selection[M] | None:
    """The next step: the batch that waits longest, and every other that fits beside it; None when none waits.

    The sum of tokens stays within the smallest `max_step_tokens` among the chosen. An isolated batch is
    neither joined nor joins; a batch that does not fit is skipped and opens a later step, since the batch that
    waits longest always runs.
    """
    waiting = iter(waiting)
    head = next(waiting, None)
    if head is None:
        return None
    if head.isolated:
        return Selection((head,), Composition.ISOLATED)
    chosen = [head]
    tokens, queries = head.token_count, head.query_count
    budget = min(head.max_step_tokens, limits.step_tokens)
    for batch in waiting:
        allowed = min(budget, batch.max_step_tokens)
        if batch.isolated or tokens + batch.token_count > allowed or queries + batch.query_count > limits.step_queries:
            continue
        chosen.append(batch)
        tokens, queries, budget = tokens + batch.token_count, queries + batch.query_count, allowed
    return Selection(tuple(chosen), Composition.MERGED if len(chosen) > 1 else Composition.SINGLE)
