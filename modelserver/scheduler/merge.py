"""Choose which of the waiting batches make up the next engine step (algorithms §2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar


class Mergeable(Protocol):
    """What the choice looks at: sizes, the sender's budget, and whether the batch goes alone."""

    @property
    def token_count(self) -> int: ...

    @property
    def query_count(self) -> int: ...

    @property
    def max_step_tokens(self) -> int: ...

    @property
    def alone(self) -> bool: ...


M = TypeVar("M", bound=Mergeable)


class Composition(StrEnum):
    """How a step came about; a metric's label."""

    ALONE = "alone"
    SINGLE = "single"
    MERGED = "merged"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """What one engine step holds."""

    step_tokens: int
    step_queries: int


@dataclass(frozen=True, slots=True)
class Selection(Generic[M]):
    """The batches of one step, in the order of their arrival, and how they came together."""

    batches: tuple[M, ...]
    composition: Composition


def select(waiting: Iterable[M], limits: MergeLimits) -> Selection[M] | None:
    """The next step: the batch that waits longest, and every other that fits beside it; None when none waits.

    The sum of tokens stays within the smallest `max_step_tokens` among the chosen. A batch that goes alone is
    neither joined nor joins; one that does not fit is skipped and opens a later step, since the one that waits
    longest always runs.
    """
    waiting = iter(waiting)
    head = next(waiting, None)
    if head is None:
        return None
    if head.alone:
        return Selection((head,), Composition.ALONE)
    chosen = [head]
    tokens, queries = head.token_count, head.query_count
    budget = min(head.max_step_tokens, limits.step_tokens)
    for batch in waiting:
        allowed = min(budget, batch.max_step_tokens)
        if batch.alone or tokens + batch.token_count > allowed or queries + batch.query_count > limits.step_queries:
            continue
        chosen.append(batch)
        tokens, queries, budget = tokens + batch.token_count, queries + batch.query_count, allowed
    return Selection(tuple(chosen), Composition.MERGED if len(chosen) > 1 else Composition.SINGLE)
