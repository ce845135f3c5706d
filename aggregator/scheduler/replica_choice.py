"""Choose the replica for the next batch, and pace small batches so that replicas do not start and end together.

If a step takes about as long for one query as for many, a free replica that takes the first query at once is not
available for the queries that come a moment later. The first few queries of a load would occupy every replica within
milliseconds. All others would wait for the replicas to come free together, and because all steps take as long, the
replicas would stay in phase.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from aggregator.scheduler.replica import Replica
from aggregator.scheduler.work_item import Priority


class SendReason(StrEnum):
    """Why a batch was sent at that time; the label of `tokenbatch.batch.sends`."""

    IDLE = "idle"  # the replica was idle
    FULL = "full"  # the replica was idle, and more than a budget waited
    STAGED = "staged"  # the running batch is about to end
    AGED = "aged"  # it holds aged queries
    OVERSIZED = "oversized"  # one input longer than the budget
    DRAIN = "drain"  # the process is stopping
    RETRY = "retry"  # a failed batch, sent again
    SUSPECT = "suspect"  # part of a batch that failed twice, alone in the pool


_MEMORY = 0.9
"""The weight of earlier batches in the rate, at each new batch."""


class Pace:
    """When the next batch that is not full may go although a replica is free for it. Times are monotonic seconds."""

    __slots__ = ("_elapsed_s", "_items", "_sent_s")

    def __init__(self) -> None:
        self._sent_s = -inf
        self._items = 0.0
        self._elapsed_s = 0.0

    def sent(self, items: int, now_s: float) -> None:
        if self._sent_s > -inf:
            self._items = _MEMORY * self._items + items
            self._elapsed_s = _MEMORY * self._elapsed_s + (now_s - self._sent_s)
        self._sent_s = now_s

    def next_s(self, free_replicas: int, next_free_s: float, gain: float) -> float:
        """When the next small batch may go; `-inf` while arrivals are so rare that each query finds a free replica.

        The time from the last batch to `next_free_s`, when a busy replica comes free, is divided evenly between the
        `free_replicas` and that one. `gain` in [0, 1] is the share of a step that waiting queries save by sharing it
        with later ones: the smaller it is, the shorter the wait.
        """
        window_s = next_free_s - self._sent_s
        if not 0.0 < window_s < inf or self._items * window_s < free_replicas * self._elapsed_s:
            return -inf
        return self._sent_s + gain * window_s / (free_replicas + 1)


_QUICKER = 1.5
"""A replica is skipped only for others that are faster by this factor; otherwise equal ones would all be skipped."""

_ALIKE = 1.2
"""Replicas whose predicted times differ by less than this factor count as equally fast."""

_PATIENCE = 2.0
"""If a skipped replica would finish later than this many steps of a faster one, one more replica is made active."""


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    """A replica that takes a batch now, or the time to ask again (`inf`: when something changes).

    `finish_s`: when that batch would be answered; if this replica would miss the earliest deadline, when the soonest
    replica would answer it. None while the replica has no evidence. `lacks_replica`: no active replica takes what
    waits, but another one could.
    """

    replica: Replica | None
    wake_s: float
    reason: SendReason = SendReason.IDLE
    finish_s: float | None = None
    lacks_replica: bool = False


def choose_replica(
    replicas: Collection[Replica],
    now_s: float,
    queued_tokens: int,
    pace: Pace | None = None,
    deadline_s: float = inf,
    *,
    priority: Priority = Priority.BACKGROUND,
    prompt: bytes = b"",
) -> ReplicaChoice:
    """Choose the replica with the smallest predicted finish among the due ones.

    It is skipped only while faster replicas, after everything they have in flight, would finish all waiting tokens
    sooner than it would finish one batch. So a pod that is ten times slower does not hold a query ten times as long,
    but takes its part in an overload. With a `pace`, less than a full batch waits for its time, unless the earliest
    waiting `deadline_s` could then be missed. Of the replicas that finish about as soon as the first one, the one is
    chosen that holds most of the `prompt`'s beginning. `priority`: the most urgent class that waits.
    """
    ready: list[Replica] = []
    later: list[Replica] = []
    wake_s = inf
    share_tokens = queued_tokens / max(1, len(replicas))
    for replica in replicas:
        due_s = replica.due_s(now_s, priority, share_tokens)
        if due_s <= now_s:
            ready.append(replica)
        else:
            later.append(replica)
            wake_s = min(wake_s, due_s)
    if not ready:
        return ReplicaChoice(None, wake_s, lacks_replica=True)
    tokens = min(queued_tokens, *(replica.token_budget for replica in ready))
    best = ready[0] if len(ready) == 1 else min(ready, key=lambda replica: replica.finish_s(tokens, now_s, priority))
    if prompt:
        best = _with_prefix(ready, best, tokens, now_s, prompt)
    best_finish_s = best.finish_s(min(queued_tokens, best.token_budget), now_s, priority)
    free_s = [(replica.free_s(now_s, priority), replica) for replica in later]
    sooner = [
        (at_s, replica, replica.finishes_by(best_finish_s, queued_tokens, now_s))
        for at_s, replica in free_s
        if _QUICKER * replica.step_time_s(tokens) <= best.step_time_s(tokens)
    ]
    if sum(finished for _, _, finished in sooner) >= queued_tokens:
        # Ask again at the latest when one of these replicas should be free.
        wake_s = min(wake_s, *(at_s for at_s, _, finished in sooner if finished))
        step_s = min(replica.step_time_s(tokens) for _, replica, finished in sooner if finished)
        return ReplicaChoice(None, wake_s, lacks_replica=best_finish_s - now_s > _PATIENCE * step_s)
    full = queued_tokens >= best.token_budget
    if pace is not None and later and not full:
        # A query that waits to share a step saves the part of its time that does not depend on tokens.
        gain = best.step_time_s(1) / best.step_time_s(queued_tokens)
        paced_s = pace.next_s(len(ready), min(at_s for at_s, _ in free_s), gain)
        if paced_s > now_s and best.answer_s(queued_tokens, paced_s, priority) < deadline_s:
            return ReplicaChoice(None, min(wake_s, paced_s))
    reason = SendReason.FULL if full else SendReason.IDLE
    return ReplicaChoice(
        best,
        wake_s,
        SendReason.STAGED if best.batches_out else reason,
        _answer_s(best, replicas, now_s, queued_tokens, deadline_s, priority=priority)
        if best.has_evidence(now_s)
        else None,
    )


def _with_prefix(ready: Collection[Replica], best: Replica, tokens: int, now_s: float, prompt: bytes) -> Replica:
    """The replica that holds most of the prompt, of those about as fast as `best`; a tie goes to `best`."""
    within_s = now_s + _ALIKE * (best.finish_s(tokens, now_s) - now_s)
    alike = [replica for replica in ready if replica is not best and replica.finish_s(tokens, now_s) <= within_s]
    return max([best, *alike], key=lambda replica: replica.known_tokens(prompt))


def _answer_s(
    best: Replica,
    replicas: Collection[Replica],
    now_s: float,
    queued_tokens: int,
    deadline_s: float,
    *,
    priority: Priority,
) -> float:
    """When a batch is expected to be answered: by `best`, or if that is late, by the soonest replica with evidence."""
    answer_s = best.answer_s(min(queued_tokens, best.token_budget), now_s, priority)
    if answer_s < deadline_s:
        return answer_s
    return min(
        replica.answer_s(min(queued_tokens, replica.token_budget), now_s, priority)
        for replica in replicas
        if replica.has_evidence(now_s)
    )


class Replicas(UserDict[str, Replica]):
    """Replicas by name. Those `in_use` are compared for each batch: here all; the wing `subsets` spares some."""

    def __init__(self) -> None:
        super().__init__()
        self.in_use: dict[str, Replica] = self.data

    def due_s(self, now_s: float, priority: Priority = Priority.BACKGROUND) -> float:
        """When the first replica takes its next batch of this class (monotonic seconds); `inf` without replicas."""
        first_s = inf
        for replica in self.data.values():
            first_s = min(first_s, replica.due_s(now_s, priority))
            if first_s <= now_s:
                break
        return first_s

    @property
    def has_spare(self) -> bool:
        return False

    def widen(self) -> bool:
        """Use one more replica; whether there was one."""
        return False

    def returned(self, replica: Replica) -> None:
        """A batch came back from this replica."""


NewReplicas = Callable[[str], Replicas]
"""Makes the replicas of the dispatcher of that name."""


def all_in_use(dispatcher: str) -> Replicas:
    del dispatcher
    return Replicas()
