"""What cannot be in time is refused at once, and only where the prediction stands on fresh evidence."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.scheduler.budget.saturation import Curve, Rule
from aggregator.scheduler.outlook import Forecast, Outlook, forecast
from aggregator.scheduler.queue import QueuePolicy, TokenQueue
from aggregator.scheduler.replica import Lane, LanePolicy, StepReport
from aggregator.scheduler.work_item import Priority, Query

CURVE = Curve(0.0, 0.0, 0.001, 100, Rule.THROUGHPUT, 1000)
"""1000 tokens a second; a full batch of 100 takes 0.1 s."""
NOW_S = 50.0


def lane(evidence_s: float | None = NOW_S) -> Lane:
    made = Lane("a", CURVE, 100, LanePolicy())
    if evidence_s is not None:
        made.sent("0", 100, evidence_s - 0.1)
        made.ended("0", evidence_s, StepReport(100, 0.1, 0, 0.0, 0.0))
    return made


class Waiting:
    """A queue and its outlook, filled together."""

    def __init__(self) -> None:
        self.queue = TokenQueue(QueuePolicy(coalesce=False))
        self.outlook = Outlook(self.queue)

    def add(
        self,
        tokens: int,
        tenant: str = "a",
        priority: Priority = Priority.INTERACTIVE,
        in_s: float = inf,
    ) -> None:
        query = Query(None, 0, priority, tenant, NOW_S, NOW_S + in_s)
        self.queue.put(query, b"", tokens)
        self.outlook.charge(priority, tenant, query.deadline_s, tokens)

    def late(self, in_s: float, tokens: int = 10, tenant: str = "a", priority: Priority = Priority.INTERACTIVE) -> bool:
        found = forecast([lane()], NOW_S)
        assert found is not None
        return self.outlook.is_late(found, priority, tenant, NOW_S + in_s, tokens)


def test_an_empty_queue_refuses_only_what_an_engine_step_outlasts() -> None:
    assert not Waiting().late(0.011)
    assert Waiting().late(0.009)


def test_without_a_deadline_nothing_is_late() -> None:
    waiting = Waiting()
    waiting.add(10_000)
    assert not waiting.late(inf)


def test_the_tenants_own_earlier_deadlines_are_ahead() -> None:
    waiting = Waiting()
    for _ in range(100):
        waiting.add(10, in_s=0.5)
    assert waiting.late(0.9)
    assert not waiting.late(1.2)


def test_later_deadlines_and_none_are_not_ahead() -> None:
    waiting = Waiting()
    waiting.add(1000, in_s=10.0)
    waiting.add(1000)
    assert not waiting.late(0.2)


def test_a_better_class_is_ahead_and_a_worse_one_is_not() -> None:
    waiting = Waiting()
    waiting.add(500, priority=Priority.DEFAULT)
    assert not waiting.late(0.2)
    assert waiting.late(0.4, priority=Priority.BACKGROUND)
    assert not waiting.late(0.7, priority=Priority.BACKGROUND)


def test_another_tenants_flood_is_ahead_only_as_far_as_the_shares_are_equal() -> None:
    waiting = Waiting()
    for _ in range(100):
        waiting.add(10, "flood", in_s=0.2)
    assert not waiting.late(0.2, tenant="quiet")
    assert waiting.late(0.9, tenant="flood")


def test_there_is_no_forecast_without_lanes_or_while_one_lacks_evidence() -> None:
    assert forecast([], NOW_S) is None
    assert forecast([lane(), lane(None)], NOW_S) is None
    assert forecast([lane(NOW_S - 6)], NOW_S) is None
    assert forecast([lane(NOW_S - 4)], NOW_S) is not None


def test_lanes_work_together() -> None:
    found = forecast([lane(), lane()], NOW_S)
    assert found is not None
    assert found.tokens_per_s == pytest.approx(2000.0)
    assert found.finish_s(1000, 100) == pytest.approx(NOW_S + 0.6)


requests = st.lists(
    st.tuples(
        st.sampled_from(Priority), st.sampled_from("abc"), st.sampled_from((0.01, 0.5, 7.0, inf)), st.integers(1, 9)
    ),
    max_size=60,
)


@given(requests)
def test_what_was_charged_and_released_leaves_nothing_behind(
    held: list[tuple[Priority, str, float, int]],
) -> None:
    waiting = Waiting()
    for priority, tenant, in_s, tokens in held:
        waiting.outlook.charge(priority, tenant, NOW_S + in_s, tokens)
    for priority, tenant, in_s, tokens in reversed(held):
        waiting.outlook.release(priority, tenant, NOW_S + in_s, tokens)
    assert not any(waiting.outlook._flows)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


@pytest.mark.slow
@given(requests, st.sampled_from((0.01, 0.5, 7.0)), st.integers(1, 50))
def test_more_time_never_makes_a_request_late(
    held: list[tuple[Priority, str, float, int]], in_s: float, tokens: int
) -> None:
    waiting = Waiting()
    for priority, tenant, due_s, count in held:
        waiting.add(count, tenant, priority, due_s)
    found = Forecast(NOW_S, NOW_S, 1000.0, lane())
    total = sum(count for *_, count in held)
    assert not waiting.outlook.is_late(found, Priority.BACKGROUND, "a", NOW_S + (total + 100) / 1000 + 0.1, tokens)
    if not waiting.outlook.is_late(found, Priority.DEFAULT, "b", NOW_S + in_s, tokens):
        assert not waiting.late(in_s + (total + tokens) / 1000, tokens, "b", Priority.DEFAULT)


def test_work_of_ones_own_without_a_deadline_is_not_ahead_nor_counts_as_another_tenant() -> None:
    waiting = Waiting()
    waiting.add(500)
    assert not waiting.late(0.101)
    assert waiting.late(0.099)


def test_each_other_tenant_gets_as_much_as_oneself_before_ones_turn_is_over() -> None:
    waiting = Waiting()
    waiting.add(100, in_s=0.1)
    for tenant in ("b", "c"):
        waiting.add(500, tenant, in_s=0.1)
    assert waiting.late(0.41)  # 100 of one's own, 110 of each other, and a step of 100
    assert not waiting.late(0.425)


def test_neither_what_expired_nor_what_is_due_just_after_is_ahead() -> None:
    for in_s in (-1.0, 0.31, 0.36):
        waiting = Waiting()
        waiting.add(500, in_s=in_s)
        assert not waiting.late(0.3)
    waiting = Waiting()
    waiting.add(500, in_s=0.3)
    assert waiting.late(0.3)


def test_what_is_under_way_still_counts_for_those_that_come_after_it() -> None:
    """Its tokens wait in no queue any more, and what is left there cannot take longer than all of it."""
    waiting = Waiting()
    waiting.add(50, in_s=0.1)
    waiting.outlook.charge(Priority.INTERACTIVE, "a", NOW_S + 0.1, 1000)
    assert waiting.late(0.105)
    assert not waiting.late(0.115)


def test_a_deadline_that_is_met_to_the_tick_is_met() -> None:
    exact = Lane("a", Curve(0.0, 0.0, 1 / 1024, 128, Rule.THROUGHPUT, 1000), 128, LanePolicy())
    found = Forecast(0.0, 0.0, 1024.0, exact)
    queue = TokenQueue(QueuePolicy(coalesce=False))
    outlook = Outlook(queue)
    query = Query(None, 0, Priority.INTERACTIVE, "a", 0.0, 0.25)
    queue.put(query, b"", 256)
    queue.put(Query(None, 1, Priority.INTERACTIVE, "a", 0.0, inf), b"", 512)
    outlook.charge(Priority.INTERACTIVE, "a", 0.25, 256)
    outlook.charge(Priority.INTERACTIVE, "a", inf, 512)
    for deadline_s, late in ((0.375, False), (0.3749, True)):
        assert outlook.is_late(found, Priority.INTERACTIVE, "a", deadline_s, 128) is late
    for deadline_s, late in ((0.875, False), (0.8749, True)):
        assert outlook.is_late(found, Priority.BACKGROUND, "b", deadline_s, 128) is late


def test_what_is_released_is_no_longer_ahead_though_the_tenant_holds_more() -> None:
    waiting = Waiting()
    waiting.add(300, in_s=0.1)
    waiting.add(200, in_s=0.11)
    assert waiting.late(0.4)
    waiting.outlook.release(Priority.INTERACTIVE, "a", NOW_S + 0.1, 300)
    assert waiting.late(0.28)
    assert not waiting.late(0.31)


def test_a_lane_that_takes_no_time_is_no_division_by_zero() -> None:
    quick = Lane("a", Curve(0.0, 0.0, 0.0, 100, Rule.FLAT, 1000), 100, LanePolicy())
    quick.sent("0", 100, NOW_S)
    quick.ended("0", NOW_S, StepReport(100, 0.0, 0, 0.0, 0.0))
    found = forecast([quick], NOW_S)
    assert found is not None
    assert found.finish_s(1000, 100) == pytest.approx(NOW_S, abs=1e-4)


def test_the_lane_that_is_free_first_is_waited_for() -> None:
    free, busy = lane(), lane()
    busy.sent("1", 100, NOW_S)
    found = forecast([busy, free], NOW_S)
    assert found is not None
    assert (found.lane, found.start_s, found.now_s) == (free, NOW_S, NOW_S)
    assert found.finish_s(0, 1000) == pytest.approx(NOW_S + 0.1)  # a step is no longer than a budget


def test_what_would_be_in_time_behind_all_that_waits_is_in_time_whoever_else_holds_what() -> None:
    exact = Lane("a", Curve(0.0, 0.0, 1 / 1024, 128, Rule.THROUGHPUT, 1000), 128, LanePolicy())
    queue = TokenQueue(QueuePolicy(coalesce=False))
    outlook = Outlook(queue)
    queue.put(Query(None, 0, Priority.INTERACTIVE, "a", 0.0, 0.25), b"", 256)
    outlook.charge(Priority.INTERACTIVE, "a", 0.25, 256)
    outlook.charge(Priority.INTERACTIVE, "b", inf, 64)  # under way
    assert not outlook.is_late(Forecast(0.0, 0.0, 1024.0, exact), Priority.INTERACTIVE, "a", 0.375, 128)
