"""What cannot be in time is refused at once, and only where the prediction stands on fresh evidence."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.lanes import Lane, LanePolicy, StepReport
from aggregator.core.outlook import Forecast, Outlook, forecast
from aggregator.core.query import Priority, Query
from aggregator.core.queue import QueuePolicy, TokenQueue
from aggregator.core.saturation import Curve, Rule

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
