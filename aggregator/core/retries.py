"""Give failed batches another chance, and corner the one query that breaks the engine.

A failed batch goes whole to another lane once. Failing again it becomes suspect: it is bisected, and at most
one suspect part is out in the whole pool, always on the same lane, so that a query which kills the engine
kills one server and no more. For n entries with one poison: at most max(3, log2(n) + 2) failing sends, and
2 * log2(n) + 2 sends in all. (A lone query fails three times, not two, before it is condemned: two servers
that happen to go away one after the other must not dead-letter an innocent.)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from aggregator.core.query import Entry, Query


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`backoff_s` is the longest pause before a retry; a suspect waits `patience_s` for its lane to come back."""

    backoff_s: float = 0.02
    patience_s: float = 30.0
    quarantine_size: int = 1024


@dataclass(slots=True, eq=False)
class Group:
    """Entries that are sent together once more."""

    entries: list[Entry]
    failures: int
    failed_on: str
    not_before_s: float
    suspect: bool = False

    @property
    def token_count(self) -> int:
        """Σ token_count."""
        return sum(entry.token_count for entry in self.entries)

    def drop_dead(self) -> None:
        """Leave out the entries nobody waits for any more."""
        self.entries = [entry for entry in self.entries if entry.alive]


@dataclass(slots=True)
class _Suspects:
    """The parts of the batch under suspicion now, in the order to try them, and those that wait behind it."""

    parts: deque[Group] = field(default_factory=deque)
    waiting: deque[Group] = field(default_factory=deque)
    lane: str = ""
    lane_missing_since_s: float | None = None
    out: bool = False


class Retries:
    """The failed batches of one model."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._whole: deque[Group] = deque()
        self._suspects = _Suspects()
        self._quarantine: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """Groups that wait to be sent again."""
        return len(self._whole) + len(self._suspects.parts) + len(self._suspects.waiting)

    def is_quarantined(self, token_ids: bytes) -> bool:
        """Whether this very input broke the engine lately."""
        return token_ids in self._quarantine

    def refused(self, entries: list[Entry], group: Group | None, lane: str, now_s: float, jitter: float) -> None:
        """A server refused a batch before starting it: it waits its turn again, at no charge."""
        again = group or Group(entries, 0, "", now_s)
        again.not_before_s = now_s + jitter * self._policy.backoff_s
        if again.suspect:
            self._suspects.out = False
            self._suspects.parts.appendleft(again)
        else:
            again.failed_on = lane
            self._whole.appendleft(again)

    def failed(self, entries: list[Entry], group: Group | None, lane: str, now_s: float, jitter: float) -> list[Entry]:
        """A batch failed on a lane; `jitter` in [0, 1) spreads retries.

        Returns the entries proven to be poison (none or one): they failed alone.
        """
        failures = group.failures + 1 if group else 1
        not_before_s = now_s + jitter * self._policy.backoff_s * failures
        if group is not None and group.suspect:
            return self._part_failed(group, lane, not_before_s)
        again = Group(entries, failures, lane, not_before_s)
        if failures == 1:
            self._whole.append(again)
            return []
        again.suspect = True
        self._suspects.waiting.append(again)
        self._open_next()
        return []

    def succeeded(self, group: Group) -> None:
        """A retried group came back well."""
        if group.suspect:
            self._suspects.out = False
            self._open_next()

    def next_for(self, lane: str, *, idle: bool, others: bool, now_s: float) -> Group | None:
        """The group to send on this lane now, if any.

        `idle`: nothing is out on the lane; a suspect travels alone. `others`: the pool has another lane, so that
        a whole retry need not go where it failed.
        """
        suspects = self._suspects
        if idle and suspects.parts and not suspects.out and suspects.lane in ("", lane):
            part = suspects.parts[0]
            part.drop_dead()
            if not part.entries:
                suspects.parts.popleft()
                self._open_next()
            elif part.not_before_s <= now_s:
                suspects.parts.popleft()
                suspects.lane, suspects.out = lane, True
                return part
        for group in self._whole:
            if group.not_before_s <= now_s and (group.failed_on != lane or not others):
                self._whole.remove(group)
                group.drop_dead()
                return group if group.entries else None
        return None

    def next_due_s(self, now_s: float) -> float | None:
        """When a waiting group's pause ends; None when none waits on time alone."""
        times = [group.not_before_s for group in (*self._whole, *self._suspects.parts) if group.not_before_s > now_s]
        return min(times, default=None)

    def lanes_changed(self, lanes: Iterable[str], now_s: float) -> None:
        """Tell which lanes there are; a suspect whose lane stays away is moved after `patience_s`."""
        suspects = self._suspects
        if not suspects.lane or suspects.lane in lanes:
            suspects.lane_missing_since_s = None
        elif suspects.lane_missing_since_s is None:
            suspects.lane_missing_since_s = now_s
        elif now_s - suspects.lane_missing_since_s > self._policy.patience_s:
            suspects.lane, suspects.lane_missing_since_s = "", None

    def expire(self, now_s: float) -> list[Query]:
        """Take out the waiting queries whose deadline has passed."""
        expired: list[Query] = []
        for group in (*self._whole, *self._suspects.parts, *self._suspects.waiting):
            for entry in group.entries:
                late = [query for query in entry.waiters if not query.done and query.deadline_s <= now_s]
                for query in late:
                    query.done = True
                expired += late
        return expired

    def entries(self) -> list[Entry]:
        """Every entry that waits to be sent again; for rare sweeps."""
        groups = (*self._whole, *self._suspects.parts, *self._suspects.waiting)
        return [entry for group in groups for entry in group.entries]

    def _part_failed(self, group: Group, lane: str, not_before_s: float) -> list[Entry]:
        self._suspects.out, self._suspects.lane = False, lane
        if len(group.entries) == 1:
            self._open_next()
            return self._condemn(group.entries)
        self._bisect(group, not_before_s)
        return []

    def _bisect(self, group: Group, not_before_s: float) -> None:
        half = len(group.entries) // 2
        for entries in (group.entries[half:], group.entries[:half]):
            part = Group(entries, group.failures + 1, group.failed_on, not_before_s, suspect=True)
            self._suspects.parts.appendleft(part)

    def _open_next(self) -> None:
        """Put the next failed batch under suspicion once the present one is cleared up."""
        suspects = self._suspects
        while not suspects.parts and not suspects.out:
            suspects.lane = ""
            if not suspects.waiting:
                return
            group = suspects.waiting.popleft()
            group.drop_dead()
            suspects.lane = group.failed_on
            if len(group.entries) > 1:
                self._bisect(group, group.not_before_s)
            elif group.entries:
                suspects.parts.append(group)

    def _condemn(self, entries: list[Entry]) -> list[Entry]:
        for entry in entries:
            self._quarantine[entry.token_ids] = None
            if len(self._quarantine) > self._policy.quarantine_size:
                self._quarantine.popitem(last=False)
        return entries
