"""The clock's skew is told from records alone, as far as they can tell it, and doubt never outlives its cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.sources.kafka.clock_skew import SKEW_LIMIT_S, ClockSkew
from aggregator.sources.kafka.committed_offset import CommittedOffset, InFlightRecord
from tests.support.records import FakeRecord

EPOCH_S = 1_767_225_600.0
"""True time when the monotonic clock shows 0."""


class Reading:
    """One partition, read by a process whose clock is `ahead_s` of the true time, which the monotonic clock counts."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        self.now_s = 100.0
        self.told: list[float] = []
        self.skew = ClockSkew(self.told.append)
        self.committed_offset = CommittedOffset("in", 0, 0)
        self._next = 0

    def end(self, ago_s: float = 0.0) -> None:
        """All was read, as of so long ago."""
        self.committed_offset.saw_log_end(self._next, self.now_s - ago_s)

    def in_flight(self, ago_s: float, producer_ahead_s: float = 0.0, *, timestamp: int | None = None) -> InFlightRecord:
        """The next record, written so long ago by a producer whose clock is off."""
        written_ms = int((EPOCH_S + self.now_s - ago_s + producer_ahead_s) * 1000) if timestamp is None else timestamp
        in_flight = self.committed_offset.deliver(FakeRecord("in", 0, self._next, written_ms, None, b"", ()))
        self._next += 1
        return in_flight

    def doubts(self, *in_flight_records: InFlightRecord) -> list[bool]:
        """Whether each of these, just read, is doubted."""
        self.skew.read(in_flight_records, self.now_s, EPOCH_S + self.now_s + self.ahead_s)
        return [self.skew.doubts(in_flight) for in_flight in in_flight_records]


def test_a_backlog_alone_tells_nothing() -> None:
    reading = Reading()
    assert reading.doubts(reading.in_flight(ago_s=3600.0)) == [False]
    assert reading.told == []


def test_a_clock_that_started_ahead_is_found_out_at_the_log_s_end() -> None:
    reading = Reading(ahead_s=300.0)
    assert reading.doubts(reading.in_flight(ago_s=10.0)) == [False]
    reading.end(ago_s=0.2)
    assert reading.doubts(reading.in_flight(ago_s=0.1)) == [True]
    reading.now_s += 50.0
    assert reading.doubts(reading.in_flight(ago_s=30.0)) == [True]
    assert [round(skew_s) for skew_s in reading.told] == [300]
    assert round(reading.skew.shown_s(reading.now_s)) == 300


def test_a_clock_that_started_behind_is_found_out_by_any_fresh_record() -> None:
    reading = Reading(ahead_s=-300.0)
    assert reading.doubts(reading.in_flight(ago_s=1.0)) == [True]
    assert round(reading.skew.shown_s(reading.now_s)) == -299


def test_a_step_is_noticed_amid_a_backlog_and_so_is_its_end() -> None:
    for step_s in (300.0, -300.0):
        reading = Reading()
        assert reading.doubts(reading.in_flight(ago_s=500.0)) == [False]
        reading.ahead_s = step_s
        assert reading.doubts(reading.in_flight(ago_s=500.0)) == [True]
        reading.ahead_s = 0.0
        assert reading.doubts(reading.in_flight(ago_s=500.0)) == [False]


def test_a_machine_that_slept_is_believed_again_once_a_record_is_fresh() -> None:
    reading = Reading()
    assert reading.doubts(reading.in_flight(ago_s=0.0)) == [False]
    reading.ahead_s = 600.0  # the monotonic clock stood still: what is wrong is the idea of the true time
    assert reading.doubts(reading.in_flight(ago_s=500.0, producer_ahead_s=600.0)) == [True]
    assert reading.doubts(reading.in_flight(ago_s=0.1, producer_ahead_s=600.0)) == [False]


def test_one_producer_s_clock_puts_only_its_own_records_in_doubt() -> None:
    reading = Reading()
    for off_s in (300.0, -300.0):
        reading.end()
        good, bad, last = reading.in_flight(0.0), reading.in_flight(0.0, producer_ahead_s=off_s), reading.in_flight(0.0)
        assert reading.doubts(good, bad, last) == [False, True, False]


def test_people_are_told_for_a_minute_and_then_that_all_is_well() -> None:
    reading = Reading()
    reading.end()
    assert reading.doubts(reading.in_flight(0.0, producer_ahead_s=20.0)) == [True]
    for _ in range(7):
        reading.now_s += 10.0
        reading.end()
        assert reading.doubts(reading.in_flight(0.0)) == [False]
    assert [round(skew_s) for skew_s in reading.told] == [-20, 0]
    assert abs(reading.skew.shown_s(reading.now_s)) < 0.01
    assert reading.skew.shown_s(reading.now_s + 61.0) == 0.0


def test_a_record_without_a_time_goes_by_what_is_known() -> None:
    reading = Reading()
    assert reading.doubts(reading.in_flight(0.0, timestamp=-1)) == [False]
    reading.ahead_s = 60.0
    assert reading.doubts(reading.in_flight(0.0, timestamp=-1)) == [True]


@pytest.mark.slow
@given(
    ahead_s=st.floats(-1000, 1000),
    steps=st.lists(
        st.tuples(st.floats(0, 100), st.booleans(), st.floats(0, 50), st.sampled_from((0.0, 0.0, 60.0, -60.0))),
        min_size=1,
    ),
)
def test_a_fresh_record_completes_any_doubt_rightly(
    ahead_s: float, steps: list[tuple[float, bool, float, float]]
) -> None:
    reading = Reading(ahead_s)
    for passed_s, at_end, ago_s, step_s in steps:
        reading.now_s += passed_s
        reading.ahead_s += step_s
        if at_end:
            reading.end(ago_s)
        reading.doubts(reading.in_flight(ago_s))
    reading.now_s += 1.0
    reading.end(ago_s=0.5)
    (doubted,) = reading.doubts(reading.in_flight(ago_s=0.25))
    if abs(abs(reading.ahead_s) - SKEW_LIMIT_S) > 1.0:
        assert doubted == (abs(reading.ahead_s) > SKEW_LIMIT_S)


def test_a_clock_that_is_off_by_just_what_is_allowed_is_believed() -> None:
    for ahead_s, doubted in ((-SKEW_LIMIT_S, False), (-SKEW_LIMIT_S - 0.5, True)):
        reading = Reading(ahead_s)
        assert reading.doubts(reading.in_flight(0.0)) == [doubted]
        assert len(reading.told) == doubted


def test_the_largest_skew_is_shown_for_a_minute() -> None:
    reading = Reading()
    reading.end()
    reading.doubts(reading.in_flight(0.0, producer_ahead_s=2.0))
    assert reading.skew.shown_s(reading.now_s + 59.9) == pytest.approx(-2.0, abs=0.01)
    assert reading.skew.shown_s(reading.now_s + 60.0) == 0.0


def test_a_larger_skew_is_shown_at_once_and_a_smaller_one_only_after_a_minute() -> None:
    reading = Reading()
    for off_s in (2.0, 4.0, 3.0):
        reading.now_s += 10.0
        reading.end()
        reading.doubts(reading.in_flight(0.0, producer_ahead_s=off_s))
    for waited_s, shown_s in ((59.0, -4.0), (60.0, -3.0)):
        reading.now_s = 130.0 + waited_s
        reading.skew.read([], reading.now_s, EPOCH_S + reading.now_s)
        assert reading.skew.shown_s(reading.now_s) == pytest.approx(shown_s, abs=0.01)


def test_before_anything_was_read_no_skew_is_shown() -> None:
    assert Reading().skew.shown_s(0.0) == 0.0


def test_a_record_of_the_year_1970_has_a_time_like_any_other() -> None:
    reading = Reading()
    reading.end()
    assert reading.doubts(reading.in_flight(0.0, timestamp=0)) == [True]


def test_the_end_of_a_doubt_is_told_as_such_though_a_little_skew_is_left() -> None:
    reading = Reading()
    for off_s in (20.0, 2.0):
        reading.end()
        reading.doubts(reading.in_flight(0.0, producer_ahead_s=off_s))
        reading.now_s += 60.0
    reading.end()
    reading.doubts(reading.in_flight(0.0, producer_ahead_s=2.0))
    assert [round(reading.told[0]), *reading.told[1:]] == [-20, 0.0]
