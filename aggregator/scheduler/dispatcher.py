"""Decide which batches are due now, on which replica and why, and what happens to batches that come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

from aggregator.scheduler.packing import Packer, PackPolicy
from aggregator.scheduler.queue import QueuePolicy, TokenQueue
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport
from aggregator.scheduler.replica_choice import NewReplicas, Pace, SendReason, all_in_use, choose_replica
from aggregator.scheduler.retries import ONE_TOKEN, Retries, RetryBatch, RetryPolicy
from aggregator.scheduler.work_item import Beside, Priority, Query, WorkItem

_DOUBLES_S = 60.0
"""A hang costs a time-out and a rejoin, some ten seconds: a small share of the time between two of them."""
_MOST_DOUBLINGS = 30.0  # more would overflow, and limit nothing
_MOST_SHARED = 2.0
"""Less urgent inputs make the step of interactive ones at most so many times as long."""
_ANY = 1 << 30  # tokens: no limit
_MOST_LIMITS = 1024
"""Addresses of pods that are gone are forgotten."""


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """How one model's queue, packing, replicas and retries behave.

    `lone_timeout_s`: a batch's time-out if there is no other replica. `paced`: whether small batches are spread over
    time (see `replica_choice.Pace`). `by_prefix`: whether a prompt prefers, of replicas that are about equally fast,
    one that has computed its beginning before. `replicas` makes its replicas.
    """

    queue: QueuePolicy = field(default_factory=QueuePolicy)
    pack: PackPolicy = field(default_factory=PackPolicy)
    replica: ReplicaPolicy = field(default_factory=ReplicaPolicy)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    lone_timeout_s: float = 60.0
    paced: bool = True
    by_prefix: bool = False
    replicas: NewReplicas = all_in_use


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Items packed for one replica; `retry` is set if they failed before. The time-out counts from `packed_s`.

    `token_budget`: the tokens of their engine step, including other aggregators' batches. `priority`: of the most
    urgent item. `shared_budget`: the tokens of that step with less urgent batches.
    """

    batch_id: str
    items: list[WorkItem]
    token_count: int
    replica: Replica
    reason: SendReason
    retry: RetryBatch | None
    packed_s: float
    timeout_s: float
    token_budget: int
    priority: Priority = Priority.DEFAULT
    shared_budget: int = 0

    @property
    def attempt(self) -> int:
        return self.retry.failures if self.retry else 0

    @property
    def isolated(self) -> bool:
        return self.retry is not None and self.retry.suspect

    @property
    def control(self) -> bool:
        """Whether it only shows if the server is healthy; no request waits for it."""
        return self.retry is not None and self.retry.control


@dataclass(slots=True)
class Due:
    """The batches to send and queries to fail now, and when to ask again (`inf`: when something changes)."""

    batches: list[Batch] = field(default_factory=list)
    expired: list[Query] = field(default_factory=list)
    late: list[Query] = field(default_factory=list)
    wake_s: float = inf


class TimeOuts:
    """Lessons of time-outs about replicas, also once they have left and joined again.

    An engine may hang above some number of tokens: after a time-out the next batch holds half as many, and twice as
    many after each `_DOUBLES_S`. `since_s`: when batches began to time out, with none answered since; `inf`: they do
    not.
    """

    def __init__(self) -> None:
        self.since_s = inf
        self._limits: dict[str, tuple[int, float]] = {}

    def note(self, batch: Batch, now_s: float) -> None:
        """A batch timed out; a batch that waited behind it on its replica proves nothing more."""
        self.since_s = min(self.since_s, now_s)
        name = batch.replica.name
        if name not in self._limits or self._limits[name][1] < batch.packed_s:
            self._limits.pop(name, None)
            self._limits[name] = max(1, batch.token_count // 2), now_s
            if len(self._limits) > _MOST_LIMITS:
                del self._limits[next(iter(self._limits))]

    def most_tokens(self, replica: Replica, now_s: float) -> int:
        """How many tokens a batch may hold on this replica, as far as time-outs say."""
        if replica.name not in self._limits:
            return _ANY
        tokens, at_s = self._limits[replica.name]
        limit = tokens * 2.0 ** min((now_s - at_s) / _DOUBLES_S, _MOST_DOUBLINGS)
        if limit < max(replica.token_budget, replica.largest):
            return int(limit)
        del self._limits[replica.name]
        return _ANY


class Dispatcher:
    """The queue, replicas and retries of one model revision; `name` makes its batch ids unique."""

    def __init__(self, name: str, policy: DispatchPolicy, control_ids: bytes = ONE_TOKEN) -> None:
        """`control_ids`: an input that every healthy server computes (see `retries`)."""
        self.queue = TokenQueue(policy.queue)
        self.replicas = policy.replicas(name)
        self.retries = Retries(policy.retry, control_ids)
        self.packer = Packer(self.queue, policy.pack)
        self.time_outs = TimeOuts()
        self._pace = Pace()
        self._policy = policy
        self._reserving = False
        self._batch_ids = (f"{name}-{number}" for number in count(1))

    @property
    def waits(self) -> bool:
        """Whether something is queued, is to be sent again, or still holds a replica for a suspect."""
        return self._reserving or len(self.queue) > 0 or len(self.retries) > 0

    def due(self, now_s: float, *, max_items: int, draining: bool = False) -> Due:
        """Pack every batch that is to be sent now: retry batches first, then batches from the queue."""
        due = Due()
        due.expired = self.queue.expire(now_s) + self.retries.expire(now_s)
        if len(self.retries) or self._reserving:
            self._send_again(due, now_s)
        self._send_queued(due, now_s, max_items, SendReason.DRAIN if draining else None)
        due.wake_s = min(due.wake_s, self.queue.next_deadline_s())
        return due

    def done(
        self,
        batch: Batch,
        report: StepReport | None,
        now_s: float,
        failed: Sequence[WorkItem] = (),
        jitter: float = 0.0,
    ) -> list[WorkItem]:
        """A batch was answered, but for its items that `failed`; `report`: None if the server says nothing of its step.

        Returns the items proven to be poison; the others that failed are sent again.
        """
        self._ended(batch, now_s, report)
        self.time_outs.since_s = inf
        return self.retries.answered(
            batch.items, failed, batch.retry, replica=batch.replica.name, now_s=now_s, jitter=jitter
        )

    def refused(self, batch: Batch, now_s: float, jitter: float) -> None:
        """A server refused a batch before starting it; `jitter` in [0, 1) spreads the retries."""
        batch.replica.hold_until(now_s + self._policy.retry.backoff_s * (0.5 + jitter))
        self._ended(batch, now_s, None)
        self.retries.refused(batch.items, batch.retry, now_s, jitter)

    def lost(self, items: list[WorkItem], replica: str, now_s: float, jitter: float, *, again: bool) -> None:
        """A replica failed after these items began there: they continue elsewhere, as suspects if `again`."""
        before = RetryBatch(items, 1, replica, now_s) if again else None
        self.retries.failed(items, before, replica, now_s, jitter)

    def failed(self, batch: Batch, now_s: float, jitter: float, *, timed_out: bool = False) -> list[WorkItem]:
        """A batch failed. Returns the items proven to be poison; the others are sent again."""
        if timed_out:
            self.time_outs.note(batch, now_s)
        self._ended(batch, now_s, None)
        return self.retries.failed(batch.items, batch.retry, batch.replica.name, now_s, jitter)

    def stalled_s(self, now_s: float) -> float:
        """The seconds for which queries waited or ran while every batch timed out; 0 if one was answered."""
        waits = len(self.queue) or len(self.retries) or any(replica.batches_out for replica in self.replicas.values())
        return max(0.0, now_s - self.time_outs.since_s) if waits else 0.0

    def waiting(self) -> Iterator[WorkItem]:
        """Items queued or waiting for a retry; only for rare sweeps."""
        yield from self.queue.items()
        yield from self.retries.items()

    def _send_again(self, due: Due, now_s: float) -> None:
        retries, replicas = self.retries, self.replicas.values()
        retries.replicas_changed(self.replicas, now_s)
        for replica in replicas:
            replica.exclusive = not replica.reserved and retries.reserves(replica.name, now_s)
            while replica.due_s(now_s) <= now_s:
                retry = retries.next_for(
                    replica.name,
                    token_budget=min(replica.token_budget, self.time_outs.most_tokens(replica, now_s)),
                    idle=replica.idle,
                    others=len(replicas) > 1,
                    now_s=now_s,
                )
                if retry is None:
                    break
                reason = SendReason.SUSPECT if retry.suspect else SendReason.RETRY
                due.batches.append(self._batch(replica, retry.items, reason, retry, now_s))
        self._reserving = any(replica.exclusive for replica in replicas)
        times = (retries.next_due_s(now_s), *(replica.due_s(now_s) for replica in replicas))
        due.wake_s = min(time_s for time_s in times if time_s > now_s)

    def _send_queued(self, due: Due, now_s: float, max_items: int, always: SendReason | None) -> None:
        queue = self.queue
        pace = self._pace if self._policy.paced and always is None else None
        while len(queue):
            prompt = b""
            if self._policy.by_prefix:
                prompt = queue.next_ids()
            choice = choose_replica(
                self.replicas.in_use.values(),
                now_s,
                queue.tokens,
                pace,
                queue.next_deadline_s(),
                priority=queue.next_priority,
                prompt=prompt,
            )
            replica = choice.replica
            if replica is None:
                if choice.lacks_replica and self.replicas.widen():
                    continue
                due.wake_s = min(due.wake_s, choice.wake_s)
                return
            budget = self._budget(replica, now_s)
            # No deadline estimate if a spare replica might be sooner, or if the step was sized by the deadlines.
            finish_s = None if self.replicas.has_spare or budget > replica.token_budget else choice.finish_s
            room = min(max_items, max(1, replica.seats))
            packed = self.packer.pack(
                budget, now_s, max_items=room, finish_s=finish_s, shared_budget=self._shared_budget(replica, budget)
            )
            due.late += packed.late
            if packed.items:
                self._pace.sent(len(packed.items), now_s)
                reason = SendReason.OVERSIZED if packed.oversized else SendReason.AGED if packed.aged else choice.reason
                due.batches.append(self._batch(replica, packed.items, always or reason, None, now_s, budget=budget))

    def _budget(self, replica: Replica, now_s: float) -> int:
        """Tokens that the replica's next batch may hold: more than usual for a backlog whose deadlines allow it."""
        backlog_tokens, within_s = self.queue.backlog(now_s, replica.most_urgent)
        priority = self.queue.next_priority
        left_s = replica.answered_within_s(self.queue.next_deadline_s(), now_s, priority)
        share_tokens = -(-self.queue.tokens // max(1, len(self.replicas.in_use)))
        within_s = min(within_s, left_s)
        urgent = self.queue.most_urgent(now_s)
        beside = Beside.OTHERS if replica.most_urgent < urgent else Beside.OWN if urgent < priority else Beside.NOBODY
        tokens = replica.batch_tokens(self.queue.tokens, backlog_tokens, within_s, share_tokens, beside)
        return min(tokens, self.time_outs.most_tokens(replica, now_s))

    def _shared_budget(self, replica: Replica, budget: int) -> int:
        """Tokens up to which less urgent inputs join the interactive ones that wait."""
        urgent_tokens = min(budget, self.queue.classes[Priority.INTERACTIVE].tokens)
        return _shared_tokens(replica, urgent_tokens) if urgent_tokens else budget

    def _batch(
        self,
        replica: Replica,
        items: list[WorkItem],
        reason: SendReason,
        retry: RetryBatch | None,
        now_s: float,
        *,
        budget: int = 0,
    ) -> Batch:
        token_count = sum([item.token_count for item in items])
        budget = min(max(budget, replica.token_budget), self.time_outs.most_tokens(replica, now_s))
        batch_id = next(self._batch_ids)
        priority = min([item.priority for item in items])  # a list: a generator costs each item twice as much
        timeout_s = replica.sent(batch_id, token_count, now_s, budget, priority)
        if self._policy.by_prefix:
            replica.note_prompts(item.token_ids for item in items)
        if len(self.replicas) == 1:
            timeout_s = max(timeout_s, self._policy.lone_timeout_s)
        urgent_tokens = sum([item.token_count for item in items if item.priority is Priority.INTERACTIVE])
        shared_budget = min(budget, _shared_tokens(replica, urgent_tokens)) if urgent_tokens else budget
        return Batch(
            batch_id, items, token_count, replica, reason, retry, now_s, timeout_s, budget, priority, shared_budget
        )

    def _ended(self, batch: Batch, now_s: float, report: StepReport | None) -> None:
        batch.replica.ended(batch.batch_id, now_s, report)
        self.replicas.returned(batch.replica)


def _shared_tokens(replica: Replica, urgent_tokens: int) -> int:
    """Tokens of a step with less urgent inputs that takes at most twice as long as with the interactive ones alone."""
    return replica.tokens_within(_MOST_SHARED * replica.step_time_s(urgent_tokens))
