"""The committed offset: never past an unfinished offset, never back, nothing forgotten."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from aggregator.sources.kafka.offsets import CommittedOffset, InFlightRecord
from tests.support.records import record_at


def test_a_new_partition_commits_where_it_starts() -> None:
    committed_offset = CommittedOffset("questions", 3, 17)
    assert (committed_offset.position, committed_offset.span, committed_offset.unfinished) == (17, 0, 0)


def test_the_first_record_holds_back_all_that_complete_behind_it() -> None:
    committed_offset = CommittedOffset("questions", 0, 10)
    first, second, third = (committed_offset.deliver(record_at(offset)) for offset in (10, 11, 12))
    committed_offset.complete(third)
    committed_offset.complete(second)
    assert (committed_offset.position, committed_offset.span, committed_offset.unfinished) == (10, 3, 3)
    committed_offset.complete(first)
    assert (committed_offset.position, committed_offset.span, committed_offset.unfinished) == (13, 0, 0)


def test_gaps_between_offsets_are_passed_over() -> None:
    committed_offset = CommittedOffset("questions", 0, 0)
    before, after = committed_offset.deliver(record_at(4)), committed_offset.deliver(record_at(9))
    committed_offset.complete(before)
    assert committed_offset.position == 9
    committed_offset.complete(after)
    assert committed_offset.position == 10


def test_offsets_without_a_record_are_passed_once_all_before_are_complete() -> None:
    committed_offset = CommittedOffset("questions", 0, 0)
    in_flight = committed_offset.deliver(record_at(0))
    committed_offset.skip_to(20)
    assert committed_offset.position == 0
    committed_offset.complete(in_flight)
    assert (committed_offset.position, committed_offset.span) == (20, 0)
    committed_offset.skip_to(5)
    assert committed_offset.position == 20


def test_completing_twice_changes_nothing() -> None:
    committed_offset = CommittedOffset("questions", 0, 0)
    first, second = committed_offset.deliver(record_at(0)), committed_offset.deliver(record_at(1))
    committed_offset.complete(second)
    committed_offset.complete(second)
    assert (committed_offset.position, committed_offset.span, committed_offset.unfinished) == (0, 2, 2)
    committed_offset.complete(first)
    committed_offset.complete(first)
    assert committed_offset.position == 2


def test_after_the_fence_nothing_moves_any_more() -> None:
    committed_offset = CommittedOffset("questions", 0, 0)
    first, second, third = (committed_offset.deliver(record_at(offset)) for offset in range(3))
    committed_offset.complete(second)
    assert committed_offset.fence() == (first, third)
    committed_offset.complete(first)
    committed_offset.skip_to(50)
    assert (committed_offset.position, committed_offset.unfinished, first.completed) == (0, 0, False)
    assert committed_offset.fence() == ()


@pytest.mark.parametrize("fenced", [False, True])
def test_an_offset_delivered_twice_or_after_the_fence_is_a_bug(*, fenced: bool) -> None:
    committed_offset = CommittedOffset("questions", 0, 5)
    committed_offset.deliver(record_at(5))
    if fenced:
        committed_offset.fence()
    with pytest.raises(AssertionError, match="This is a bug"):
        committed_offset.deliver(record_at(6 if fenced else 5))


@dataclass(slots=True, eq=False)
class Delivered:
    in_flight: InFlightRecord
    completed: bool = False


class AnyOrder(RuleBasedStateMachine):
    """Deliver, complete in any order, skip and fence, against a list that remembers everything."""

    def __init__(self) -> None:
        super().__init__()
        self.committed_offset = CommittedOffset("questions", 0, 0)
        self.start = self.end = self.committed = 0
        self.delivered: list[Delivered] = []

    @initialize(start=st.integers(0, 1000))
    def begin(self, start: int) -> None:
        self.committed_offset = CommittedOffset("questions", 0, start)
        self.start = self.end = self.committed = start

    @precondition(lambda self: not self.committed_offset.fenced)
    @rule(gap=st.integers(0, 3))
    def deliver(self, gap: int) -> None:
        offset = self.end + gap
        self.delivered.append(Delivered(self.committed_offset.deliver(record_at(offset))))
        self.end = offset + 1

    @precondition(lambda self: self.delivered)
    @rule(which=st.integers(0, 10_000))
    def complete(self, which: int) -> None:
        one = self.delivered[which % len(self.delivered)]
        self.committed_offset.complete(one.in_flight)
        one.completed = one.completed or not self.committed_offset.fenced

    @precondition(lambda self: not self.committed_offset.fenced)
    @rule(more=st.integers(0, 5))
    def skip(self, more: int) -> None:
        self.committed_offset.skip_to(self.end + more)
        self.end += more

    @rule()
    def fence(self) -> None:
        already = self.committed_offset.fenced
        expected = () if already else tuple(one.in_flight for one in self.delivered if not one.completed)
        assert self.committed_offset.fence() == expected

    @invariant()
    def it_stands_at_the_first_unfinished_offset(self) -> None:
        unfinished = [one.in_flight.offset for one in self.delivered if not one.completed]
        expected = unfinished[0] if unfinished else self.end
        assert self.committed_offset.position == expected

    @invariant()
    def it_never_goes_back(self) -> None:
        assert self.committed_offset.position >= self.committed
        self.committed = self.committed_offset.position

    @invariant()
    def its_span_reaches_to_the_highest_completed(self) -> None:
        completed = [one.in_flight.offset for one in self.delivered if one.completed]
        expected = max(0, max(completed) + 1 - self.committed_offset.position) if completed else 0
        assert self.committed_offset.span == expected

    @override
    def teardown(self) -> None:
        for one in self.delivered:
            self.committed_offset.complete(one.in_flight)
        if not self.committed_offset.fenced:
            assert (self.committed_offset.position, self.committed_offset.unfinished) == (self.end, 0)


TestAnyOrder = pytest.mark.slow(AnyOrder.TestCase)
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30)
