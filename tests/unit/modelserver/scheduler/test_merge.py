"""Which batches share an engine step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from modelserver.scheduler.queued_batch import Composition, MergeLimits, Selection, select

LIMITS = MergeLimits(step_tokens=100, step_queries=10)


@dataclass(frozen=True, slots=True)
class Waiting:
    token_count: int
    query_count: int = 1
    max_step_tokens: int = 100
    isolated: bool = False
    max_shared_tokens: int = 0
    priority: int = 2
    aged_from_s: float = 1.0


def chosen(*waiting: Waiting, limits: MergeLimits = LIMITS) -> Selection[Waiting]:
    selection = select(waiting, limits, now_s=0.0)
    assert selection is not None
    return selection


def test_batches_that_fit_one_step_are_merged_in_their_order_of_arrival() -> None:
    first, second, third = Waiting(30), Waiting(40), Waiting(20)
    assert chosen(first, second, third) == Selection((first, second, third), Composition.MERGED)


def test_the_sum_stays_within_the_smallest_budget_among_the_merged() -> None:
    generous, modest = Waiting(30, max_step_tokens=100), Waiting(30, max_step_tokens=59)
    assert chosen(generous, modest).batches == (generous,)
    assert chosen(modest, generous).batches == (modest,)
    content = Waiting(30, max_step_tokens=60)
    assert chosen(generous, content).batches == (generous, content)


def test_a_step_holds_no_more_tokens_than_the_engine_does() -> None:
    first, second = Waiting(60, max_step_tokens=1000), Waiting(60, max_step_tokens=1000)
    assert chosen(first, second).batches == (first,)


def test_a_batch_that_does_not_fit_is_passed_over_and_runs_first_next() -> None:
    first, large, small = Waiting(60), Waiting(50), Waiting(40)
    assert chosen(first, large, small).batches == (first, small)
    assert chosen(large).batches == (large,)


def test_a_batch_that_goes_alone_is_not_joined() -> None:
    suspect, other = Waiting(10, isolated=True), Waiting(10)
    assert chosen(suspect, other) == Selection((suspect,), Composition.ISOLATED)


def test_a_batch_above_its_own_budget_runs_by_itself() -> None:
    oversized, small = Waiting(80, max_step_tokens=50), Waiting(5)
    assert chosen(oversized, small).batches == (oversized,)
    assert chosen(small, oversized).batches == (small,)


waiting_batches = st.lists(
    st.builds(
        Waiting,
        token_count=st.integers(1, 120),
        query_count=st.integers(1, 12),
        max_step_tokens=st.integers(1, 150),
        isolated=st.booleans(),
        priority=st.integers(1, 3),
        aged_from_s=st.floats(0.0, 2.0),
    ),
    min_size=1,
    max_size=12,
)


@given(waiting_batches)
def test_a_merged_step_never_overshoots_and_keeps_the_order_and_the_head(waiting: list[Waiting]) -> None:
    waiting = [replace(batch, priority=2) for batch in waiting]
    batches = chosen(*waiting, limits=MergeLimits(100, 10)).batches
    places = [next(place for place, batch in enumerate(waiting) if batch is chosen_one) for chosen_one in batches]
    assert places == sorted(places)
    assert places[0] == 0
    if len(batches) > 1:
        assert not any(batch.isolated for batch in batches)
        assert sum(batch.token_count for batch in batches) <= min(100, *(batch.max_step_tokens for batch in batches))
        assert sum(batch.query_count for batch in batches) <= 10


@given(waiting_batches)
def test_every_batch_runs_within_as_many_steps_as_there_are_batches(waiting: list[Waiting]) -> None:
    steps = 0
    while waiting:
        batches = chosen(*waiting).batches
        waiting = [batch for batch in waiting if all(batch is not other for other in batches)]
        steps += 1
        assert steps <= 12


def test_a_step_may_hold_as_many_queries_as_the_engine_takes() -> None:
    first, second, third = Waiting(10, query_count=4), Waiting(10, query_count=6), Waiting(10, query_count=1)
    assert chosen(first, second, third).batches == (first, second)
    few = [Waiting(10, query_count=count) for count in (5, 3, 3, 2)]
    assert chosen(*few).batches == (few[0], few[1], few[3])


def test_a_batch_without_queries_joins_whatever_the_engine_takes() -> None:
    """All of them were at fault: there is nothing for the engine to see."""
    full, nothing = Waiting(100, query_count=10), Waiting(0, query_count=0)
    assert chosen(full, nothing).batches == (full, nothing)


@given(waiting_batches, st.booleans())
def test_no_batch_waits_for_more_than_its_turn(waiting: list[Waiting], after_aged: bool) -> None:
    """The first is the most urgent that came first, or by its age the oldest: never twice in a row."""
    selection = select(waiting, LIMITS, now_s=1.0, after_aged=after_aged)
    assert selection is not None
    head, best = selection.batches[0], min(waiting, key=lambda batch: batch.priority)
    assert head is (min(waiting, key=lambda batch: batch.aged_from_s) if selection.aged else best)
    assert not (selection.aged and after_aged)
    assert not selection.aged or (head.aged_from_s <= 1.0 and head.priority > best.priority)


def test_merged_batches_keep_the_order_of_classes() -> None:
    bulk, question = Waiting(30, priority=3), Waiting(30, priority=1)
    assert chosen(bulk, question) == Selection((question, bulk), Composition.MERGED)


def test_less_urgent_batches_join_up_to_what_the_questions_allow() -> None:
    question, another = Waiting(10, priority=1, max_shared_tokens=60), Waiting(10, priority=1, max_shared_tokens=50)
    bulk = Waiting(40, max_step_tokens=40, priority=3)
    assert chosen(bulk, question).batches == (question, bulk)
    assert chosen(bulk, question, another).batches == (question, another)
    assert chosen(replace(bulk, token_count=30), question, another).batches[2:] == (replace(bulk, token_count=30),)
