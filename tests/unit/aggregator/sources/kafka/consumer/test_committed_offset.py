"""The watermark: never past an unsettled offset, never back, nothing forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from aggregator.sources.kafka.consumer.committed_offset import Lease, Watermark


def test_a_new_partition_commits_where_it_starts() -> None:
    watermark = Watermark("questions", 3, 17)
    assert (watermark.position, watermark.span, watermark.unsettled) == (17, 0, 0)
    assert watermark.holder is None


def test_the_first_record_holds_back_all_that_settle_behind_it() -> None:
    watermark = Watermark("questions", 0, 10)
    first, second, third = (watermark.deliver(offset, None) for offset in (10, 11, 12))
    watermark.settle(third)
    watermark.settle(second)
    assert (watermark.position, watermark.span, watermark.unsettled) == (10, 3, 3)
    assert watermark.holder is first
    watermark.settle(first)
    assert (watermark.position, watermark.span, watermark.unsettled) == (13, 0, 0)
    assert watermark.holder is None


def test_gaps_between_offsets_are_passed_over() -> None:
    watermark = Watermark("questions", 0, 0)
    before, after = watermark.deliver(4, None), watermark.deliver(9, None)
    watermark.settle(before)
    assert watermark.position == 9
    watermark.settle(after)
    assert watermark.position == 10


def test_offsets_without_a_record_are_passed_only_when_all_before_them_are_settled() -> None:
    watermark = Watermark("questions", 0, 0)
    lease = watermark.deliver(0, None)
    watermark.skip_to(20)
    assert watermark.position == 0
    watermark.settle(lease)
    assert (watermark.position, watermark.span) == (20, 0)
    watermark.skip_to(5)
    assert watermark.position == 20


def test_settling_twice_changes_nothing() -> None:
    watermark = Watermark("questions", 0, 0)
    first, second = watermark.deliver(0, None), watermark.deliver(1, None)
    watermark.settle(second)
    watermark.settle(second)
    assert (watermark.position, watermark.span, watermark.unsettled) == (0, 2, 2)
    watermark.settle(first)
    watermark.settle(first)
    assert watermark.position == 2


def test_after_the_fence_nothing_moves_any_more() -> None:
    watermark = Watermark("questions", 0, 0)
    first, second, third = (watermark.deliver(offset, None) for offset in range(3))
    watermark.settle(second)
    assert watermark.fence() == (first, third)
    watermark.settle(first)
    watermark.skip_to(50)
    assert (watermark.position, watermark.unsettled, first.settled) == (0, 0, False)
    assert watermark.fence() == ()


@pytest.mark.parametrize("fenced", [False, True])
def test_an_offset_delivered_twice_or_after_the_fence_is_a_bug(*, fenced: bool) -> None:
    watermark = Watermark("questions", 0, 5)
    watermark.deliver(5, None)
    if fenced:
        watermark.fence()
    with pytest.raises(AssertionError, match="This is a bug"):
        watermark.deliver(6 if fenced else 5, None)


@dataclass(slots=True, eq=False)
class Delivered:
    lease: Lease
    settled: bool = False


class AnyOrder(RuleBasedStateMachine):
    """Deliver, settle in any order, skip and fence, against a list that remembers everything."""

    def __init__(self) -> None:
        super().__init__()
        self.watermark = Watermark("questions", 0, 0)
        self.start = self.end = self.committed = 0
        self.delivered: list[Delivered] = []

    @initialize(start=st.integers(0, 1000))
    def begin(self, start: int) -> None:
        self.watermark = Watermark("questions", 0, start)
        self.start = self.end = self.committed = start

    @precondition(lambda self: not self.watermark.fenced)
    @rule(gap=st.integers(0, 3))
    def deliver(self, gap: int) -> None:
        offset = self.end + gap
        self.delivered.append(Delivered(self.watermark.deliver(offset, f"record {offset}")))
        self.end = offset + 1

    @precondition(lambda self: self.delivered)
    @rule(which=st.integers(0, 10_000))
    def settle(self, which: int) -> None:
        one = self.delivered[which % len(self.delivered)]
        self.watermark.settle(one.lease)
        one.settled = one.settled or not self.watermark.fenced

    @precondition(lambda self: not self.watermark.fenced)
    @rule(more=st.integers(0, 5))
    def skip(self, more: int) -> None:
        self.watermark.skip_to(self.end + more)
        self.end += more

    @rule()
    def fence(self) -> None:
        already = self.watermark.fenced
        expected = () if already else tuple(one.lease for one in self.delivered if not one.settled)
        assert self.watermark.fence() == expected

    @invariant()
    def it_stands_at_the_first_unsettled_offset(self) -> None:
        unsettled = [one.lease.offset for one in self.delivered if not one.settled]
        expected = unsettled[0] if unsettled else self.end
        assert self.watermark.position == expected
        if not self.watermark.fenced:
            assert (self.watermark.holder.offset if self.watermark.holder else None) == (
                unsettled[0] if unsettled else None
            )

    @invariant()
    def it_never_goes_back(self) -> None:
        assert self.watermark.position >= self.committed
        self.committed = self.watermark.position

    @invariant()
    def its_span_reaches_to_the_highest_settled(self) -> None:
        settled = [one.lease.offset for one in self.delivered if one.settled]
        expected = max(0, max(settled) + 1 - self.watermark.position) if settled else 0
        assert self.watermark.span == expected

    @override
    def teardown(self) -> None:
        for one in self.delivered:
            self.watermark.settle(one.lease)
        if not self.watermark.fenced:
            assert (self.watermark.position, self.watermark.unsettled) == (self.end, 0)


TestAnyOrder = pytest.mark.slow(AnyOrder.TestCase)
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_only_the_last_three_ends_of_the_log_are_remembered() -> None:
    watermark = Watermark("questions", 0, 0)
    for end in (10, 20, 30, 40):
        watermark.saw_log_end(end, float(end))
    assert watermark.written_after_s(45) == 40.0
    assert watermark.written_after_s(20) == 20.0
    assert watermark.written_after_s(19) == -inf


def test_a_topic_without_an_id_has_none() -> None:
    assert Watermark("questions", 0, 0).topic_id == ""
