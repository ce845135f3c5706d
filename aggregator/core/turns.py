"""Decide which lane takes the next batch, and when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from aggregator.core.lanes import Lane, SendReason
from aggregator.core.pacing import Pace

_PATIENCE = 2.0
"""What a lane is passed by with may wait for the others for so many of their steps, and is then worth one lane more."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A lane that takes a batch now, or the time to ask again (`inf`: when something changes).

    `finish_s` is when that batch would be answered, by the soonest of the lanes if this one would miss the earliest
    deadline; None while the lane has no evidence for it. `lacks_lane`: none takes what waits, but another one could.
    """

    lane: Lane | None
    reason: SendReason
    wake_s: float
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

    It is passed by only while other lanes, after all that they have out, would finish everything that waits
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
        return Turn(None, SendReason.IDLE, wake_s, lacks_lane=True)
    tokens = min(queued_tokens, *(lane.token_budget for lane in ready))
    best = min(ready, key=lambda lane: lane.finish_s(tokens, now_s))
    best_finish_s = best.finish_s(min(queued_tokens, best.token_budget), now_s)
    free_s = [(lane.free_s(now_s), lane) for lane in later]
    sooner = [
        (at_s, lane, lane.finishes_by(best_finish_s, queued_tokens, now_s))
        for at_s, lane in free_s
        if at_s < best_finish_s
    ]
    if sum(finished for _, _, finished in sooner) >= queued_tokens:
        # Ask again at the latest when one of these promises turns out to be broken.
        wake_s = min(wake_s, *(at_s for at_s, _, finished in sooner if finished))
        step_s = min(lane.step_time_s(tokens) for _, lane, finished in sooner if finished)
        return Turn(None, SendReason.IDLE, wake_s, lacks_lane=best_finish_s - now_s > _PATIENCE * step_s)
    full = queued_tokens >= best.token_budget
    if pace is not None and later and not full:
        # What a step costs whatever it holds is what a query saves that waits to share one.
        gain = best.step_time_s(1) / best.step_time_s(queued_tokens)
        paced_s = pace.next_s(len(ready), min(at_s for at_s, _ in free_s), gain)
        if paced_s > now_s and best.answer_s(queued_tokens, paced_s) <= deadline_s:
            return Turn(None, SendReason.IDLE, min(wake_s, paced_s))
    reason = SendReason.FULL if full else SendReason.IDLE
    return Turn(
        best,
        SendReason.STAGED if best.batches_out else reason,
        wake_s,
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
