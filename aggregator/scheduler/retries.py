"""Retry failed batches, and find the one query that makes the engine fail.

A failed batch is retried whole on another replica once. If it fails again, it is a suspect: it is bisected, and at most
one suspect part is in flight in the whole pool. For n items with one poison, bisection takes log2(n) + 2 failing sends
(rounded up) and at most 2 * log2(n) + 2 sends in all; then the poison has failed isolated, in a part of its own.

An isolated failure alone proves nothing, because the server may be unwell. An item that failed isolated is accused:
before each further send, `controls` steps of an input that is known to be good must succeed on that server. Only
failures after those are proof: `proofs` of them, on two servers where two are well. If a control fails, the server is
unwell, nobody is blamed, and the proof begins anew, on another server where there is one.

A server may also fail single items of a batch, in whatever words: they are sent again as a batch of their own that
failed. A server is to blame for what succeeds elsewhere, and for a control. After `blames` of these, with no batch in
between that it answered whole, it is not to be trusted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from math import inf

from aggregator.scheduler.work_item import ID_BYTES, Priority, Query, WorkItem

ONE_TOKEN = (1).to_bytes(4, "little")
"""An input of one token that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`backoff_s`: the longest pause before a first retry. `patience_s`: how long a suspect waits for its replica.

    `proofs`, `controls`: where every step fails with probability p by chance, a query that reaches isolation is
    condemned with probability p^(1 + proofs) (1 - p)^(controls (proofs - 1)) or little more: at most 2e-5, at p = 1/6.
    `parts`: into how many parts a suspect batch is cut. `blames`: as many as the failed steps in a row after which an
    engine leaves service by itself.
    `quarantine_s`: a fault that is mended, or was the servers', must not refuse an input for long.
    """

    backoff_s: float = 0.02
    most_backoff_s: float = 5.0
    patience_s: float = 30.0
    parts: int = 2
    proofs: int = 3
    controls: int = 10
    quarantine_size: int = 1024
    quarantine_s: float = 300.0
    blames: int = 8


@dataclass(slots=True, eq=False)
class RetryBatch:
    """Items that are sent again together.

    `control`: the items are known to be good, and show whether the server is healthy. `accused`: where the single
    item failed isolated first. `proven_on`: where it did so after successful controls.
    """

    items: list[WorkItem]
    failures: int
    failed_on: str
    not_before_s: float
    suspect: bool = False
    control: bool = False
    accused: str = ""
    proven_on: tuple[str, ...] = ()

    @property
    def token_count(self) -> int:
        return sum(item.token_count for item in self.items)

    def drop_dead(self) -> None:
        self.items = [item for item in self.items if item.alive]


class Retries:
    """The failed batches of one model. `control_ids`: an input that every healthy server computes (int32)."""

    def __init__(self, policy: RetryPolicy, control_ids: bytes = ONE_TOKEN) -> None:
        self._policy = policy
        self._whole: deque[RetryBatch] = deque()
        self._suspects = _Suspects(policy, control_ids)
        self._quarantine = _Quarantine(policy.quarantine_size, policy.quarantine_s)
        self._blames: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._retry_batches())

    @property
    def has_quarantined(self) -> bool:
        """Whether any input is quarantined, or was."""
        return bool(self._quarantine)

    def is_quarantined(self, token_ids: bytes, now_s: float) -> bool:
        """Whether this very input was proven to be poison in the last `quarantine_s`."""
        return self._quarantine.holds(token_ids, now_s)

    def quarantine(self, token_ids: bytes, now_s: float) -> None:
        self._quarantine.add(token_ids, now_s)

    def end_quarantine(self, token_ids: bytes) -> None:
        self._quarantine.remove(token_ids)

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
        """A batch failed on a replica; `jitter` in [0, 1) spreads retries. Returns the proven poison, if any."""
        failures = retry.failures + 1 if retry else 1
        pause_s = jitter * min(self._policy.most_backoff_s, self._policy.backoff_s * failures)
        again = RetryBatch(items, failures, replica, now_s + pause_s)
        if retry is not None and retry.suspect:
            again = replace(retry, items=items, failures=failures, failed_on=replica, not_before_s=again.not_before_s)
            poison = self._suspects.failed(again)
            for item in poison:
                if not item.is_refused:  # another request may have the same tokens, and be right
                    self.quarantine(item.token_ids, now_s)
            if again.control:
                self._blames[replica] += 1
                self._acquit(now_s, jitter)
            return poison
        if failures == 1:
            self._whole.append(again)
        else:
            self._suspects.add(again)
        return []

    def _acquit(self, now_s: float, jitter: float) -> None:
        """A server is unwell: suspects that wait for their bisection are retried whole again, after a longer pause."""
        acquitted = self._suspects.waiting
        for number, retry in enumerate(acquitted, start=1):
            retry.suspect, retry.failures = False, 0
            retry.not_before_s = now_s + jitter * self._policy.most_backoff_s * number / len(acquitted)
        self._whole.extend(acquitted)
        acquitted.clear()

    def answered(
        self,
        items: Sequence[WorkItem],
        failed: Sequence[WorkItem],
        retry: RetryBatch | None,
        *,
        replica: str,
        now_s: float,
        jitter: float,
    ) -> list[WorkItem]:
        """A replica answered a batch but for the items that `failed`. Returns the proven poison, if any."""
        if not failed:
            del self._blames[replica]
        refuted = retry is not None and not retry.control and len(failed) < len(items)
        if retry is not None and refuted and retry.failed_on not in ("", replica):
            self._blames[retry.failed_on] += 1
        if failed:
            return self.failed(list(failed), retry, replica, now_s, jitter)
        if retry is not None and retry.suspect:
            self._suspects.succeeded(retry)
        return []

    def untrusted(self) -> list[str]:
        """The replicas that were to blame too often since the last call; their count begins anew."""
        names = [name for name, blames in self._blames.items() if blames >= self._policy.blames]
        for name in names:
            del self._blames[name]
        return names

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
        for gone in self._blames.keys() - set(replicas):
            del self._blames[gone]

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
    """The parts of the batch that is bisected now, in the order of trial, and the suspect batches that wait.

    `out`: a part or a control is in flight. `replica`: where the next one goes. `moves_s`: when it goes elsewhere,
    because that replica is away.
    """

    def __init__(self, policy: RetryPolicy, control_ids: bytes) -> None:
        self.parts: deque[RetryBatch] = deque()
        self.waiting: deque[RetryBatch] = deque()
        self.replica = ""
        self.out = False
        self.moves_s = inf
        self._policy = policy
        self._control = WorkItem(control_ids, len(control_ids) // ID_BYTES, [], Priority.DEFAULT)
        self._controls_left = policy.controls
        self._replicas: tuple[str, ...] = ()
        self._unwell: set[str] = set()

    def add(self, retry: RetryBatch) -> None:
        retry.suspect = True
        self.waiting.append(retry)
        self._open_next()

    def claims(self, replica: str, now_s: float) -> bool:
        """Whether a part or a control is to be sent on this replica as soon as nothing else is in flight there."""
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
        part = self.parts[0]
        if part.accused and self._controls_left:
            return replace(part, items=[self._control], control=True)
        return self.parts.popleft()

    def refused(self, part: RetryBatch) -> None:
        self.out = False
        if part.control:
            self.parts[0].not_before_s = part.not_before_s
        else:
            self.parts.appendleft(part)

    def succeeded(self, part: RetryBatch) -> None:
        self.out = False
        if part.control:
            self._controls_left = max(0, self._controls_left - 1)
            self._unwell.discard(self.replica)
        self._open_next()

    def failed(self, part: RetryBatch) -> list[WorkItem]:
        """The part in flight failed on `failed_on`. Returns the item that this proves to be poison, if it does."""
        self.out = False
        self.replica = part.failed_on
        poison: list[WorkItem] = []
        if part.control:
            self._unwell.add(part.failed_on)
            self.parts[0].proven_on, self.parts[0].not_before_s = (), part.not_before_s
            self._move()
        elif len(part.items) > 1:
            self._bisect(part)
        else:
            if part.accused:
                part.proven_on += (part.failed_on,)
            else:
                part.accused = part.failed_on
                self._unwell.clear()
            if self._is_proven(part.proven_on):
                poison = part.items
            else:
                self.parts.appendleft(part)
                self._move(part.accused, part.proven_on)
        self._open_next()
        return poison

    def replicas_changed(self, replicas: Collection[str], now_s: float) -> None:
        """Move the suspects to another replica if theirs has been away too long."""
        self._replicas = tuple(replicas)
        self._unwell.intersection_update(replicas)
        if not self.replica or self.replica in replicas:
            self.moves_s = inf
        elif self.moves_s == inf:
            self.moves_s = now_s + self._policy.patience_s
        elif self.moves_s <= now_s and replicas:
            self.moves_s = inf
            self._move()

    def _is_proven(self, proven_on: Collection[str]) -> bool:
        """Whether these are enough failures, on two servers where two are well."""
        well = [replica for replica in self._replicas if replica not in self._unwell]
        return len(proven_on) >= self._policy.proofs and len(set(proven_on)) >= min(2, len(well))

    def _move(self, accused: str = "", proven_on: Sequence[str] = ()) -> None:
        """Send the next part to a server that is well: to two in turns, even if away: poison kills no others."""
        self._controls_left = self._policy.controls

        def merit(replica: str) -> tuple[bool, bool, int, bool, bool]:
            new = replica not in (accused, *proven_on)
            third = new and len(set(proven_on)) > 1
            return replica in self._unwell, third, proven_on.count(replica), replica == self.replica, new

        tried = [replica for replica in dict.fromkeys((accused, *proven_on)) if replica]
        self.replica = min((*self._replicas, *tried), key=merit, default=self.replica)

    def _bisect(self, retry: RetryBatch) -> None:
        """Put the halves of a batch, or a single item, in front of the other parts."""
        cuts = [len(retry.items) * part // self._policy.parts for part in range(self._policy.parts + 1)]
        parts = [retry.items[start:end] for start, end in pairwise(cuts) if start < end]
        self.parts.extendleft(replace(retry, items=part) for part in reversed(parts))

    def _open_next(self) -> None:
        """Bisect the next suspect batch once the present one is done."""
        while not self.parts and not self.out:
            self.replica = ""
            self._controls_left = self._policy.controls
            if not self.waiting:
                return
            retry = self.waiting.popleft()
            retry.drop_dead()
            if retry.items:
                self.replica = retry.failed_on
                self._bisect(retry)


class _Quarantine:
    """Digests of the most recent poison inputs, and when each was proven."""

    def __init__(self, size: int, ends_after_s: float) -> None:
        self._size = size
        self._ends_after_s = ends_after_s
        self._digests: OrderedDict[int, tuple[bytes, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, token_ids: bytes, now_s: float) -> None:
        self._digests[hash(token_ids)] = _digest(token_ids), now_s
        if len(self._digests) > self._size:
            self._digests.popitem(last=False)

    def remove(self, token_ids: bytes) -> None:
        self._digests.pop(hash(token_ids), None)

    def holds(self, token_ids: bytes, now_s: float) -> bool:
        found = self._digests.get(hash(token_ids))  # the hash spares most a digest
        if found is None or now_s >= found[1] + self._ends_after_s:
            return False
        return found[0] == _digest(token_ids)


def _digest(token_ids: bytes) -> bytes:
    return blake2b(token_ids, digest_size=16).digest()


def _waiting(retry_batches: Collection[RetryBatch]) -> list[Query]:
    return [query for retry in retry_batches for item in retry.items for query in item.waiters if query.item is item]
