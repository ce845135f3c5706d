"""A batch that waits for its step, the choice of a step's batches (algorithms §2), and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from modelserver.engines.engine import Matrix
from modelserver.errors import ModelServerError
from modelserver.service.batch import Batch
from protos.modelserver.v1.modelserver_pb2 import Priority

AGED_S = 1.0
"""After this time a batch takes every other step from more urgent ones: far more than a step, little for a backlog."""
_AGED_SHARE = 0.5
"""A batch whose sender gives it less than two seconds ages in this share of them, and is answered within the rest."""
_RECENT_S = 10.0


def aged_from_s(ready_s: float, timeout_s: float) -> float:
    """When a batch is aged that its sender gives up `timeout_s` after it began to wait at `ready_s`."""
    return ready_s + min(AGED_S, _AGED_SHARE * timeout_s)


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

    `ready_s` is when it began to wait, `deadline_s` the caller's deadline, both on the engine loop's clock. `priority`:
    the most urgent class of its queries. `max_shared_tokens`: of a step with less urgent batches (0: as without).
    """

    batch: Batch
    deliver: Callable[[Outcome], None]
    ready_s: float
    deadline_s: float = math.inf
    priority: Priority = Priority.PRIORITY_DEFAULT
    max_shared_tokens: int = 0
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
    def aged_from_s(self) -> float:
        return aged_from_s(self.ready_s, self.deadline_s - self.ready_s)

    @property
    def isolated(self) -> bool:
        """Whether it is never merged: by its sender's wish, or because a merged step failed with it."""
        return self.batch.isolated or self.failed_merged

    def wanted(self, now_s: float) -> bool:
        return not self.withdrawn and now_s < self.deadline_s


class Mergeable(Protocol):
    """A batch, as the choice sees it: sizes, the sender's budget, class and age, and whether the batch is isolated.

    A Protocol, because the simulator's batches have no bytes, and are chosen by the same rule as a `QueuedBatch`.
    """

    @property
    def token_count(self) -> int: ...

    @property
    def query_count(self) -> int: ...

    @property
    def max_step_tokens(self) -> int: ...

    @property
    def max_shared_tokens(self) -> int: ...

    @property
    def isolated(self) -> bool: ...

    @property
    def priority(self) -> int: ...

    @property
    def aged_from_s(self) -> float: ...


M = TypeVar("M", bound=Mergeable)


class RecentPriorities:
    """The classes of the batches that came in the last ten seconds, as long as the aggregators' queues remember."""

    def __init__(self) -> None:
        self._came_s: dict[int, float] = {}

    def came(self, priority: int, now_s: float) -> None:
        self._came_s[priority] = now_s

    def at(self, now_s: float) -> list[int]:
        """The numbers of these classes, the most urgent first."""
        return sorted(priority for priority, came_s in self._came_s.items() if now_s - came_s < _RECENT_S)


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """The batches of one engine step."""

    step_tokens: int
    step_queries: int


@dataclass(frozen=True, slots=True)
class Selection(Generic[M]):
    """The batches of one step, in the order of their turns, and how they came together.

    `aged`: the first one is in turn by its age, before more urgent ones.
    """

    batches: tuple[M, ...]
    composition: Composition
    aged: bool = False


def in_turn(waiting: Sequence[M], now_s: float, *, after_aged: bool) -> tuple[list[M], bool]:
    """The batches, which are in the order of arrival, in the order of their turns: by class, then by arrival.

    But the one that is aged longest goes first, unless the last step was one of an aged batch (`after_aged`): so
    neither starves the other. The second value says whether it does.
    """
    ordered = sorted(waiting, key=lambda batch: batch.priority)
    oldest = min(waiting, key=lambda batch: batch.aged_from_s, default=None)
    if after_aged or oldest is None or oldest.aged_from_s > now_s or oldest.priority == ordered[0].priority:
        return ordered, False
    return [oldest, *(batch for batch in ordered if batch is not oldest)], True


def select(waiting: Sequence[M], limits: MergeLimits, now_s: float, *, after_aged: bool = False) -> Selection[M] | None:
    """The next step: the batch in turn, and every other that fits beside it; None when none waits.

    The sum of tokens stays within the smallest `max_step_tokens` among the chosen; with batches less urgent than the
    first one, within the smallest `max_shared_tokens` among those of its class. An isolated batch is neither joined nor
    joins; a batch that does not fit is skipped and opens a later step, since the batch in turn always runs.
    """
    ordered, aged = in_turn(waiting, now_s, after_aged=after_aged)
    if not ordered:
        return None
    head = ordered[0]
    if head.isolated:
        return Selection((head,), Composition.ISOLATED, aged)
    chosen = [head]
    tokens, queries = head.token_count, head.query_count
    budget = min(head.max_step_tokens, limits.step_tokens)
    shared = min(_shared(head), limits.step_tokens)
    for batch in ordered[1:]:
        allowed = shared if batch.priority > head.priority else min(budget, batch.max_step_tokens)
        if batch.isolated or tokens + batch.token_count > allowed or queries + batch.query_count > limits.step_queries:
            continue
        chosen.append(batch)
        tokens, queries, budget = tokens + batch.token_count, queries + batch.query_count, allowed
        if batch.priority == head.priority:
            shared = min(shared, _shared(batch))
    return Selection(tuple(chosen), Composition.MERGED if len(chosen) > 1 else Composition.SINGLE, aged)


def _shared(batch: Mergeable) -> int:
    return batch.max_shared_tokens or batch.max_step_tokens
