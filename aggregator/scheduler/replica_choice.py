"""Spread small batches over the time until the next lane comes free, so that lanes do not start and end together.

Where a step takes about as long for one query as for many, a free lane that takes the first query at once is lost to
those that come a moment later. Sent so, the first few queries of a load use every lane up within milliseconds; all
others wait for the lanes to come free together, and as all steps last as long, they stay together.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, MutableMapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from math import inf

from typing_extensions import override

from aggregator.scheduler.replica import Lane, SendReason

_MEMORY = 0.9
"""What a batch weighs in the rate, once the next one has gone."""


class Pace:
    """When the next batch that is not full may go, though a lane is free for it. Times are monotonic seconds."""

    __slots__ = ("_elapsed_s", "_entries", "_sent_s")

    def __init__(self) -> None:
        self._sent_s = -inf
        self._entries = 0.0
        self._elapsed_s = 0.0

    def sent(self, entries: int, now_s: float) -> None:
        """So many entries were cut off the queue."""
        if self._sent_s > -inf:
            self._entries = _MEMORY * self._entries + entries
            self._elapsed_s = _MEMORY * self._elapsed_s + (now_s - self._sent_s)
        self._sent_s = now_s

    def next_s(self, free_lanes: int, next_free_s: float, gain: float) -> float:
        """The time from which the next one may go; `-inf` while so little comes that a lane stays free for each query.

        The time from the last batch to `next_free_s`, when a busy lane comes free, is divided evenly between the
        `free_lanes` and that one. `gain` in [0, 1] is what the queries that wait save of a step by sharing it with
        those to come: as that falls, less waiting is worth while.
        """
        window_s = next_free_s - self._sent_s
        if not 0.0 < window_s < inf or self._entries * window_s < free_lanes * self._elapsed_s:
            return -inf
        return self._sent_s + gain * window_s / (free_lanes + 1)


_QUICKER = 1.5
"""A lane is passed by only for others whose steps take this much less time: alike, all would be, one for the other."""

_PATIENCE = 2.0
"""What a lane is passed by with may wait for the others for so many of their steps, and is then worth one lane more."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A lane that takes a batch now, or the time to ask again (`inf`: when something changes).

    `finish_s` is when that batch would be answered, by the soonest of the lanes if this one would miss the earliest
    deadline; None while the lane has no evidence for it. `lacks_lane`: none takes what waits, but another one could.
    """

    lane: Lane | None
    wake_s: float
    reason: SendReason = SendReason.IDLE
    finish_s: float | None = None
    lacks_lane: bool = False


def next_turn(
    lanes: Collection[Lane],
    now_s: float,
    queued_tokens: int,
    pace: Pace | None = None,
    deadline_s: float = inf,
) -> Turn:
    """Choose the lane with the smallest predicted finish among those whose turn it is.

    It is passed by only while quicker lanes, after all that they have out, would finish everything that waits
    sooner than it would finish one batch (a pod ten times slower than its siblings must not hold a query for
    ten times as long, but in an overload it takes its part). With a `pace`, less than a full batch waits its time
    unless the earliest `deadline_s` of what waits could then be missed.
    """
    ready: list[Lane] = []
    later: list[Lane] = []
    wake_s = inf
    for lane in lanes:
        due_s = lane.due_s(now_s, queued_tokens)
        if due_s <= now_s:
            ready.append(lane)
        else:
            later.append(lane)
            wake_s = min(wake_s, due_s)
    if not ready:
        return Turn(None, wake_s, lacks_lane=True)
    tokens = min(queued_tokens, *(lane.token_budget for lane in ready))
    best = min(ready, key=lambda lane: lane.finish_s(tokens, now_s))
    best_finish_s = best.finish_s(min(queued_tokens, best.token_budget), now_s)
    free_s = [(lane.free_s(now_s), lane) for lane in later]
    sooner = [
        (at_s, lane, lane.finishes_by(best_finish_s, queued_tokens, now_s))
        for at_s, lane in free_s
        if _QUICKER * lane.step_time_s(tokens) <= best.step_time_s(tokens)
    ]
    if sum(finished for _, _, finished in sooner) >= queued_tokens:
        # Ask again at the latest when one of these promises turns out to be broken.
        wake_s = min(wake_s, *(at_s for at_s, _, finished in sooner if finished))
        step_s = min(lane.step_time_s(tokens) for _, lane, finished in sooner if finished)
        return Turn(None, wake_s, lacks_lane=best_finish_s - now_s > _PATIENCE * step_s)
    full = queued_tokens >= best.token_budget
    if pace is not None and later and not full:
        # What a step costs whatever it holds is what a query saves that waits to share one.
        gain = best.step_time_s(1) / best.step_time_s(queued_tokens)
        paced_s = pace.next_s(len(ready), min(at_s for at_s, _ in free_s), gain)
        if paced_s > now_s and best.answer_s(queued_tokens, paced_s) < deadline_s:
            return Turn(None, min(wake_s, paced_s))
    reason = SendReason.FULL if full else SendReason.IDLE
    return Turn(
        best,
        wake_s,
        SendReason.STAGED if best.batches_out else reason,
        _answer_s(best, lanes, now_s, queued_tokens, deadline_s) if best.has_evidence(now_s) else None,
    )


def _answer_s(best: Lane, lanes: Collection[Lane], now_s: float, queued_tokens: int, deadline_s: float) -> float:
    """When a batch is likely to be answered: by `best`, or if that is late, by the soonest with evidence."""
    answer_s = best.answer_s(min(queued_tokens, best.token_budget), now_s)
    if answer_s < deadline_s:
        return answer_s
    return min(
        lane.answer_s(min(queued_tokens, lane.token_budget), now_s) for lane in lanes if lane.has_evidence(now_s)
    )


_Ranked = tuple[bytes, str]

ENOUGH = 32
"""So many lanes are always in use, and more while none of those takes what waits."""


class Roster(MutableMapping[str, Lane]):
    """Lanes by name; those `in_use` are compared for each batch, the others are spare.

    Work that is spread over more servers than it needs is cut into smaller batches than they could hold, and to
    compare a thousand lanes costs more than a batch does. Which lanes are always in use follows from their names and
    the dispatcher's (rendezvous hashing: Thaler and Ravishankar, 1998), so that each aggregator has others.
    """

    def __init__(self, dispatcher: str) -> None:
        self.in_use: dict[str, Lane] = {}
        self._dispatcher = dispatcher
        self._lanes: dict[str, Lane] = {}
        self._ranked: list[_Ranked] = []
        self._spare: list[_Ranked] = []

    @property
    def has_spare(self) -> bool:
        """Whether a lane is not in use."""
        return bool(self._spare)

    def due_s(self, now_s: float) -> float:
        """When the first lane takes its next batch (monotonic seconds); `inf` when there is none."""
        first_s = inf
        for lane in chain((self._lanes[name] for _, name in self._spare), self.in_use.values()):
            first_s = min(first_s, lane.due_s(now_s))
            if first_s <= now_s:
                break
        return first_s

    def widen(self) -> bool:
        """Use one of the spare lanes, too; False when there is none."""
        if not self._spare:
            return False
        _, name = self._spare.pop(0)
        self.in_use[name] = self._lanes[name]
        return True

    def returned(self, lane: Lane) -> None:
        """Note that a batch came back from this lane: unless it is always in use, it is spare once it is idle."""
        if len(self._lanes) > ENOUGH and self._lanes.get(lane.name) is lane:
            self._let_go(self._rank(lane.name))

    @override
    def __getitem__(self, name: str) -> Lane:
        return self._lanes[name]

    @override
    def __setitem__(self, name: str, lane: Lane) -> None:
        self.pop(name, None)
        self._lanes[name] = self.in_use[name] = lane
        insort(self._ranked, self._rank(name))
        for ranked in (self._rank(name), *self._ranked[ENOUGH : ENOUGH + 1]):
            self._let_go(ranked)

    @override
    def __delitem__(self, name: str) -> None:
        del self._lanes[name]
        self._ranked.remove(self._rank(name))
        if self.in_use.pop(name, None) is None:
            self._spare.remove(self._rank(name))
        for ranked in self._ranked[ENOUGH - 1 : ENOUGH]:
            if ranked in self._spare:
                self._spare.remove(ranked)
                self.in_use[ranked[1]] = self._lanes[ranked[1]]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._lanes)

    @override
    def __len__(self) -> int:
        return len(self._lanes)

    def _let_go(self, ranked: _Ranked) -> None:
        """Let a lane be spare if it is idle, and not one of those that are always in use."""
        name = ranked[1]
        always = len(self._ranked) <= ENOUGH or ranked < self._ranked[ENOUGH]
        if not always and name in self.in_use and not self.in_use[name].batches_out:
            del self.in_use[name]
            insort(self._spare, ranked)

    def _rank(self, name: str) -> _Ranked:
        return blake2b(f"{self._dispatcher} {name}".encode(), digest_size=8).digest(), name
