"""Give failed batches another chance, and corner the one query that breaks the engine.

A failed batch goes whole to another replica once. Failing again it becomes suspect: it is bisected, and at most
one suspect part is out in the whole pool, always on the same replica, so that a query which kills the engine
kills one server and no more. For n entries with one poison: at most log2(n) + 2 failing sends, and
2 * log2(n) + 2 sends in all. (But a lone query fails three times, not two, before it is condemned: two servers
that happen to go away one after the other must not dead-letter an innocent.)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from aggregator.scheduler.work_item import Entry, Query


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`backoff_s` is the longest pause before a retry; a suspect waits `patience_s` for its replica to come back."""

    backoff_s: float = 0.02
    patience_s: float = 30.0
    quarantine_size: int = 1024


@dataclass(slots=True, eq=False)
class Group:
    """Entries that are sent together once more. `half`: the other half of the batch this part was cut from."""

    entries: list[Entry]
    failures: int
    failed_on: str
    not_before_s: float
    suspect: bool = False
    half: Group | None = None

    @property
    def token_count(self) -> int:
        """Σ token_count."""
        return sum(entry.token_count for entry in self.entries)

    def drop_dead(self) -> None:
        """Leave out the entries nobody waits for any more."""
        alive = [entry for entry in self.entries if entry.alive]
        if len(alive) < len(self.entries):
            self.entries, self.half = alive, None  # the poison may have been among them


class Retries:
    """The failed batches of one model."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._whole: deque[Group] = deque()
        self._suspects = _Suspects(policy.patience_s)
        self._quarantine = _Quarantine(policy.quarantine_size)

    def __len__(self) -> int:
        """Groups that wait to be sent again."""
        return len(self._groups())

    def is_quarantined(self, token_ids: bytes) -> bool:
        """Whether this very input broke the engine lately."""
        return token_ids in self._quarantine

    def quarantine(self, token_ids: bytes) -> None:
        """This input broke the engine."""
        self._quarantine.add(token_ids)

    def refused(self, entries: list[Entry], group: Group | None, now_s: float, jitter: float) -> None:
        """A server refused a batch before starting it: it waits its turn again, at no charge."""
        again = group or Group(entries, 0, "", now_s)
        again.not_before_s = now_s + jitter * self._policy.backoff_s
        if again.suspect:
            self._suspects.refused(again)
        else:
            self._whole.appendleft(again)

    def failed(
        self, entries: list[Entry], group: Group | None, replica: str, now_s: float, jitter: float
    ) -> list[Entry]:
        """A batch failed on a replica; `jitter` in [0, 1) spreads retries.

        Returns the entries proven to be poison (none or one): they failed alone.
        """
        failures = group.failures + 1 if group else 1
        again = Group(entries, failures, replica, now_s + jitter * self._policy.backoff_s * failures)
        if group is not None and group.suspect:
            poison = self._suspects.failed(again)
            for entry in poison:
                self._quarantine.add(entry.token_ids)
            return poison
        if failures == 1:
            self._whole.append(again)
        else:
            self._suspects.add(again)
        return []

    def succeeded(self, group: Group) -> None:
        """A retried group came back well."""
        if group.suspect:
            self._suspects.succeeded(group)

    def reserves(self, replica: str, now_s: float) -> bool:
        """Whether a suspect runs on this replica or waits for it now: nothing is staged there, so that it is free."""
        return self._suspects.claims(replica, now_s) or (self._suspects.out and self._suspects.replica == replica)

    def next_for(self, replica: str, *, token_budget: int, idle: bool, others: bool, now_s: float) -> Group | None:
        """The group to send on this replica now, if any.

        `idle`: nothing is out on the replica; a suspect travels alone. `others`: the pool has another replica, so that
        a whole retry need not go where it failed. Of a whole group that is over the budget the rest stays here.
        """
        if idle and self._suspects.claims(replica, now_s):
            return self._suspects.send()
        for group in tuple(self._whole):
            if group.not_before_s <= now_s and (group.failed_on != replica or not others):
                self._whole.remove(group)
                group.drop_dead()
                if group.entries:
                    return self._within(group, token_budget)
        return None

    def next_due_s(self, now_s: float) -> float:
        """When something here is to be done by the clock alone: a pause ends, a deadline passes; `inf`: nothing."""
        groups = self._groups()
        pauses = (group.not_before_s for group in groups)
        deadlines = (query.deadline_s for query in _waiting(groups))
        times = (*pauses, *deadlines, self._suspects.moves_s)
        return min((time_s for time_s in times if time_s > now_s), default=inf)

    def replicas_changed(self, replicas: Collection[str], now_s: float) -> None:
        """Tell which replicas there are; suspects whose replica stays away for `patience_s` are moved to another."""
        self._suspects.replicas_changed(replicas, now_s)

    def expire(self, now_s: float) -> list[Query]:
        """Take out the waiting queries whose deadline has passed."""
        expired = [query for query in _waiting(self._groups()) if query.deadline_s <= now_s]
        for query in expired:
            query.done = True
        return expired

    def entries(self) -> list[Entry]:
        """Every entry that waits to be sent again; for rare sweeps."""
        return [entry for group in self._groups() for entry in group.entries]

    def _groups(self) -> tuple[Group, ...]:
        return (*self._whole, *self._suspects.parts, *self._suspects.waiting)

    def _within(self, group: Group, token_budget: int) -> Group:
        """As much of the group as fits the budget; the rest goes next."""
        token_count = 0
        for position, entry in enumerate(group.entries):
            token_count += entry.token_count
            if position and token_count > token_budget:
                rest = Group(group.entries[position:], group.failures, group.failed_on, group.not_before_s)
                self._whole.appendleft(rest)
                group.entries = group.entries[:position]
                break
        return group


class _Suspects:
    """The parts of the batch under suspicion now, in the order to try them, and those that wait behind it."""

    def __init__(self, patience_s: float) -> None:
        self.parts: deque[Group] = deque()
        self.waiting: deque[Group] = deque()
        self.replica = ""
        self.out = False
        self.moves_s = inf
        self._patience_s = patience_s

    def add(self, group: Group) -> None:
        """Suspect one more batch."""
        group.suspect = True
        self.waiting.append(group)
        self._open_next()

    def claims(self, replica: str, now_s: float) -> bool:
        """Whether a part is to be sent on this replica as soon as nothing else is out there."""
        while self.parts and not self.out:
            part = self.parts[0]
            part.drop_dead()
            if part.entries:
                return self.replica == replica and part.not_before_s <= now_s
            self.parts.popleft()
            self._open_next()
        return False

    def send(self) -> Group:
        """The next part; one at a time."""
        self.out = True
        return self.parts.popleft()

    def refused(self, part: Group) -> None:
        """The part that was out was not tried."""
        self.out = False
        self.parts.appendleft(part)

    def succeeded(self, part: Group) -> None:
        """The part that was out is cleared: what made its batch fail is in the other half, which need not fail too."""
        self.out = False
        if part.half is not None:
            half = self.parts.popleft()
            assert half is part.half, "A part came back before another was sent. This is a bug."
            self._open(half)
        self._open_next()

    def failed(self, part: Group) -> list[Entry]:
        """The part that was out failed; returns its entry if it was alone."""
        self.out = False
        self.replica = part.failed_on
        if len(part.entries) > 1:
            self._open(part)
            return []
        self._open_next()
        return part.entries

    def replicas_changed(self, replicas: Collection[str], now_s: float) -> None:
        """Move the suspects to another replica when theirs has been away for too long."""
        if not self.replica or self.replica in replicas:
            self.moves_s = inf
        elif self.moves_s == inf:
            self.moves_s = now_s + self._patience_s
        elif self.moves_s <= now_s and replicas:
            self.replica, self.moves_s = next(iter(replicas)), inf

    def _open(self, group: Group) -> None:
        """Put a batch's halves, or a lone entry, in front of the other parts."""
        if len(group.entries) == 1:
            self.parts.appendleft(group)
            return
        middle = len(group.entries) // 2
        first, second = (
            Group(entries, group.failures, group.failed_on, group.not_before_s, suspect=True)
            for entries in (group.entries[:middle], group.entries[middle:])
        )
        first.half = second
        self.parts.extendleft((second, first))

    def _open_next(self) -> None:
        """Put the next failed batch under suspicion once the present one is cleared up."""
        while not self.parts and not self.out:
            self.replica = ""
            if not self.waiting:
                return
            group = self.waiting.popleft()
            group.drop_dead()
            if group.entries:
                self.replica = group.failed_on
                self._open(group)


class _Quarantine:
    """Digests of the inputs condemned last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._digests: OrderedDict[int, bytes] = OrderedDict()

    def add(self, token_ids: bytes) -> None:
        self._digests[hash(token_ids)] = _digest(token_ids)
        if len(self._digests) > self._size:
            self._digests.popitem(last=False)

    def __contains__(self, token_ids: bytes) -> bool:
        digest = self._digests.get(hash(token_ids)) if self._digests else None  # the hash spares most a digest
        return digest is not None and digest == _digest(token_ids)


def _digest(token_ids: bytes) -> bytes:
    return blake2b(token_ids, digest_size=16).digest()


def _waiting(groups: Collection[Group]) -> list[Query]:
    return [query for group in groups for entry in group.entries for query in entry.waiters if not query.done]
