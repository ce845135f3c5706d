"""Spread small batches over the time until the next lane comes free, so that lanes do not start and end together.

Where a step takes about as long for one query as for many, a free lane that takes the first query at once is lost to
those that come a moment later. Sent so, the first few queries of a load use every lane up within milliseconds; all
others wait for the lanes to come free together, and as all steps last as long, they stay together.
"""

from __future__ import annotations

from math import inf

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
