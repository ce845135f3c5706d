"""Estimate how far this process's clock is off the clocks of the records, and whether requests may expire by it.

A record that is read has been written, so the clock is ahead of the record's by at most the record's apparent age.
Where its log is known to have ended before it, it was written since then, so the clock is ahead by at least the age
less that time. Nothing is learned from a backlog; but a step of the clock against the monotonic one shifts the
estimate at once, even while a backlog is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from aggregator.sources.kafka.committed_offset import InFlightRecord

SKEW_LIMIT_S = 5.0
"""If a clock is off by more, it is in doubt: absolute deadlines are ignored."""

_SHOWN_S = 60.0


class ClockSkew:
    """The estimate: seconds that this clock is ahead of the records', or behind if negative; 0 until it is known.

    `on_doubt` receives the largest skew of the last minute when it exceeds the limit, and 0 when it no longer does.
    """

    def __init__(self, on_doubt: Callable[[float], None]) -> None:
        self._on_doubt = on_doubt
        self._right_offset_s: float | None = None
        self._offset_s = self._now_s = self._wall_s = 0.0
        self._worst_s, self._worst_at_s = 0.0, -inf
        self._doubted = False

    def read(self, in_flight_records: Iterable[InFlightRecord], now_s: float, wall_s: float) -> None:
        """Learn from records just fetched; `wall_s` is the wall clock (Unix seconds) at `now_s` (monotonic)."""
        self._now_s, self._wall_s = now_s, wall_s
        self._offset_s = wall_s - now_s
        if self._right_offset_s is None:
            self._right_offset_s = self._offset_s
        self._show(self._offset_s - self._right_offset_s)
        for in_flight in {in_flight.committed_offset: in_flight for in_flight in in_flight_records}.values():
            skew_s = self._of(in_flight)
            self._right_offset_s = self._offset_s - skew_s
            self._show(skew_s)

    def doubts(self, in_flight: InFlightRecord) -> bool:
        """Whether absolute times in this record, one of those last read, cannot be compared with this clock."""
        return abs(self._of(in_flight)) > SKEW_LIMIT_S

    def shown_s(self, now_s: float) -> float:
        """The largest skew of the last minute, for the metric: producers may differ."""
        return self._worst_s if now_s - self._worst_at_s < _SHOWN_S else 0.0

    def _of(self, in_flight: InFlightRecord) -> float:
        """The estimate, changed only as far as this record requires."""
        assert self._right_offset_s is not None, "A record was doubted before any was read. This is a bug."
        skew_s = self._offset_s - self._right_offset_s
        if in_flight.timestamp < 0:
            return skew_s
        most_s: float = self._wall_s - in_flight.timestamp / 1000
        least_s: float = most_s - (self._now_s - in_flight.committed_offset.written_after_s(in_flight.offset))
        return min(max(skew_s, least_s), most_s)

    def _show(self, skew_s: float) -> None:
        if abs(skew_s) >= abs(self._worst_s) or self._now_s - self._worst_at_s >= _SHOWN_S:
            self._worst_s, self._worst_at_s = skew_s, self._now_s
        if self._doubted != (abs(self._worst_s) > SKEW_LIMIT_S):
            self._doubted = not self._doubted
            self._on_doubt(self._worst_s if self._doubted else 0.0)
