"""Retry failed batches, and find the one query that makes the engine fail.

A failed batch is retried whole on another replica once. If it fails again, it is a suspect: it is bisected, and at most
one suspect part is in flight in the whole pool, always on the same replica. So a query that kills the engine kills one
server only. For n items with one poison there are at most log2(n) + 2 failing sends, and 2 * log2(n) + 2 sends
in all. A single query fails three times, not two, before it counts as poison: two servers that happen to go away one
after the other must not dead-letter a good query.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from aggregator.scheduler.work_item import Query, WorkItem


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`backoff_s`: the longest pause before a retry. `patience_s`: how long a suspect waits for its replica."""

    backoff_s: float = 0.02
    patience_s: float = 30.0
    quarantine_size: int = 1024


@dataclass(slots=True, eq=False)
class RetryBatch:
    """Items that are sent again together. `half`: the other half of the bisected batch."""

    items: list[WorkItem]
    failures: int
    failed_on: str
    not_before_s: float
    suspect: bool = False
    half: RetryBatch | None = None

    @property
    def token_count(self) -> int:
        return sum(item.token_count for item in self.items)

    def drop_dead(self) -> None:
        alive = [item for item in self.items if item.alive]
        if len(alive) < len(self.items):
            self.items, self.half = alive, None  # the poison may have been among them


class Retries:
    """The failed batches of one model."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._whole: deque[RetryBatch] = deque()
        self._suspects = _Suspects(policy.patience_s)
        self._quarantine = _Quarantine(policy.quarantine_size)

    def __len__(self) -> int:
        return len(self._retry_batches())

    def is_quarantined(self, token_ids: bytes) -> bool:
        """Whether this very input was proven to be poison recently."""
        return token_ids in self._quarantine

    def quarantine(self, token_ids: bytes) -> None:
        self._quarantine.add(token_ids)

    def refused(self, items: list[WorkItem], retry: RetryBatch | None, now_s: float, jitter: float) -> None:
        """A server refused a batch before starting it: it is sent again, and this does not count as a failure."""
        again = retry or RetryBatch(items, 0, "", now_s)
        again.not_before_s = now_s + jitter * self._policy.backoff_s
        if again.suspect:
            self._suspects.refused(again)
        else:
            self._whole.appendleft(again)

    def failed(
        self, items: list[WorkItem], retry: RetryBatch | None, replica: str, now_s: float, jitter: float
    ) -> list[WorkItem]:
        """A batch failed on a replica; `jitter` in [0, 1) spreads retries.

        Returns the items proven to be poison (none or one): they failed alone.
        """
        failures = retry.failures + 1 if retry else 1
        again = RetryBatch(items, failures, replica, now_s + jitter * self._policy.backoff_s * failures)
        if retry is not None and retry.suspect:
            poison = self._suspects.failed(again)
            for item in poison:
                self._quarantine.add(item.token_ids)
            return poison
        if failures == 1:
            self._whole.append(again)
        else:
            self._suspects.add(again)
        return []

    def succeeded(self, retry: RetryBatch) -> None:
        if retry.suspect:
            self._suspects.succeeded(retry)

    def reserves(self, replica: str, now_s: float) -> bool:
        """Whether a suspect runs on this replica or waits for it: nothing is staged there, so that it becomes free."""
        return self._suspects.claims(replica, now_s) or (self._suspects.out and self._suspects.replica == replica)

    def next_for(self, replica: str, *, token_budget: int, idle: bool, others: bool, now_s: float) -> RetryBatch | None:
        """The retry batch to send on this replica now, if any.

        `idle`: nothing is in flight on the replica; a suspect runs alone. `others`: the pool has another replica, so a
        whole retry does not go where it failed. If a whole retry batch exceeds the budget, the rest stays here.
        """
        if idle and self._suspects.claims(replica, now_s):
            return self._suspects.send()
        for retry in tuple(self._whole):
            if retry.not_before_s <= now_s and (retry.failed_on != replica or not others):
                self._whole.remove(retry)
                retry.drop_dead()
                if retry.items:
                    return self._within(retry, token_budget)
        return None

    def next_due_s(self, now_s: float) -> float:
        """When something here is due by time alone: a pause ends or a deadline passes; `inf`: nothing."""
        retry_batches = self._retry_batches()
        pauses = (retry.not_before_s for retry in retry_batches)
        deadlines = (query.deadline_s for query in _waiting(retry_batches))
        times = (*pauses, *deadlines, self._suspects.moves_s)
        return min((time_s for time_s in times if time_s > now_s), default=inf)

    def replicas_changed(self, replicas: Collection[str], now_s: float) -> None:
        """Set the replicas of the pool; suspects whose replica stays away for `patience_s` move to another one."""
        self._suspects.replicas_changed(replicas, now_s)

    def expire(self, now_s: float) -> list[Query]:
        expired = [query for query in _waiting(self._retry_batches()) if query.deadline_s <= now_s]
        for query in expired:
            query.item = None
        return expired

    def items(self) -> list[WorkItem]:
        """Every item that waits to be sent again; only for rare sweeps."""
        return [item for retry in self._retry_batches() for item in retry.items]

    def _retry_batches(self) -> tuple[RetryBatch, ...]:
        return (*self._whole, *self._suspects.parts, *self._suspects.waiting)

    def _within(self, retry: RetryBatch, token_budget: int) -> RetryBatch:
        """As much of the retry batch as fits the budget; the rest goes next."""
        token_count = 0
        for position, item in enumerate(retry.items):
            token_count += item.token_count
            if position and token_count > token_budget:
                rest = RetryBatch(retry.items[position:], retry.failures, retry.failed_on, retry.not_before_s)
                self._whole.appendleft(rest)
                retry.items = retry.items[:position]
                break
        return retry


class _Suspects:
    """The parts of the batch that is bisected now, in the order of trial, and the suspect batches that wait."""

    def __init__(self, patience_s: float) -> None:
        self.parts: deque[RetryBatch] = deque()
        self.waiting: deque[RetryBatch] = deque()
        self.replica = ""
        self.out = False
        self.moves_s = inf
        self._patience_s = patience_s

    def add(self, retry: RetryBatch) -> None:
        retry.suspect = True
        self.waiting.append(retry)
        self._open_next()

    def claims(self, replica: str, now_s: float) -> bool:
        """Whether a part is to be sent on this replica as soon as nothing else is in flight there."""
        while self.parts and not self.out:
            part = self.parts[0]
            part.drop_dead()
            if part.items:
                return self.replica == replica and part.not_before_s <= now_s
            self.parts.popleft()
            self._open_next()
        return False

    def send(self) -> RetryBatch:
        self.out = True
        return self.parts.popleft()

    def refused(self, part: RetryBatch) -> None:
        self.out = False
        self.parts.appendleft(part)

    def succeeded(self, part: RetryBatch) -> None:
        """The part in flight succeeded: the poison is in the other half, which is bisected at once."""
        self.out = False
        if part.half is not None:
            half = self.parts.popleft()
            assert half is part.half, "A part came back before another was sent. This is a bug."
            self._open(half)
        self._open_next()

    def failed(self, part: RetryBatch) -> list[WorkItem]:
        """The part in flight failed; returns its item if it was alone."""
        self.out = False
        self.replica = part.failed_on
        if len(part.items) > 1:
            self._open(part)
            return []
        self._open_next()
        return part.items

    def replicas_changed(self, replicas: Collection[str], now_s: float) -> None:
        """Move the suspects to another replica if theirs has been away too long."""
        if not self.replica or self.replica in replicas:
            self.moves_s = inf
        elif self.moves_s == inf:
            self.moves_s = now_s + self._patience_s
        elif self.moves_s <= now_s and replicas:
            self.replica, self.moves_s = next(iter(replicas)), inf

    def _open(self, retry: RetryBatch) -> None:
        """Put the halves of a batch, or a single item, in front of the other parts."""
        if len(retry.items) == 1:
            self.parts.appendleft(retry)
            return
        middle = len(retry.items) // 2
        first, second = (
            RetryBatch(items, retry.failures, retry.failed_on, retry.not_before_s, suspect=True)
            for items in (retry.items[:middle], retry.items[middle:])
        )
        first.half = second
        self.parts.extendleft((second, first))

    def _open_next(self) -> None:
        """Bisect the next suspect batch once the present one is done."""
        while not self.parts and not self.out:
            self.replica = ""
            if not self.waiting:
                return
            retry = self.waiting.popleft()
            retry.drop_dead()
            if retry.items:
                self.replica = retry.failed_on
                self._open(retry)


class _Quarantine:
    """Digests of the most recent poison inputs."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._digests: OrderedDict[int, bytes] = OrderedDict()

    def add(self, token_ids: bytes) -> None:
        self._digests[hash(token_ids)] = _digest(token_ids)
        if len(self._digests) > self._size:
            self._digests.popitem(last=False)

    def __contains__(self, token_ids: bytes) -> bool:
        if not self._digests:
            return False
        digest = self._digests.get(hash(token_ids))  # the hash spares most a digest
        return digest is not None and digest == _digest(token_ids)


def _digest(token_ids: bytes) -> bytes:
    return blake2b(token_ids, digest_size=16).digest()


def _waiting(retry_batches: Collection[RetryBatch]) -> list[Query]:
    return [query for retry in retry_batches for item in retry.items for query in item.waiters if query.item is item]
