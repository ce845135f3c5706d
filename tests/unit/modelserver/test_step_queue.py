"""What waits for the engine: bounds, order, senders that go away, and the step that is staged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from threading import Event, Thread

import numpy as np
import pytest

from modelserver.engine import Step
from modelserver.errors import NotServing, QueueFull
from modelserver.merge import MergeLimits
from modelserver.step_queue import NextStep, QueueBounds, StepQueue
from modelserver.tickets import Ticket
from tests.unit.modelserver.fakes import WAIT_S, Client, FakeEngine, sized

BOUNDS = QueueBounds(MergeLimits(step_tokens=100, step_queries=50), max_queued_tokens=150)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> StepQueue:
    queue = StepQueue(clock)
    queue.open(BOUNDS)
    return queue


def ticket(tokens: int = 10, *, alone: bool = False, deadline_s: float = math.inf) -> Ticket:
    return Client().ticket(sized(tokens, alone=alone), deadline_s=deadline_s)


def put(queue: StepQueue, *tickets: Ticket) -> None:
    for one in tickets:
        queue.put(one)


def taken(queue: StepQueue) -> tuple[Ticket, ...]:
    following = queue.take()
    assert following is not None
    return following.selection.batches


def test_no_batch_is_taken_before_the_queue_opens() -> None:
    with pytest.raises(NotServing, match="not ready"):
        StepQueue(Clock()).put(ticket())


def test_batches_that_wait_go_out_together(queue: StepQueue) -> None:
    first, second = ticket(), ticket(20)
    put(queue, first, second)
    assert queue.queued_tokens == 30
    assert taken(queue) == (first, second)
    assert queue.queued_tokens == 0


def test_above_the_bound_a_batch_is_refused_and_the_others_stay(queue: StepQueue) -> None:
    first, second = ticket(100), ticket(50)
    put(queue, first, second)
    with pytest.raises(QueueFull, match="150 tokens wait already"):
        queue.put(ticket(1))
    assert queue.queued_tokens == 150


def test_an_empty_queue_takes_any_batch(clock: Clock) -> None:
    queue = StepQueue(clock)
    queue.open(QueueBounds(MergeLimits(100, 50), max_queued_tokens=5))
    queue.put(ticket(90))
    assert queue.queued_tokens == 90


def test_a_withdrawn_batch_never_reaches_the_engine(queue: StepQueue) -> None:
    gone, other = ticket(), ticket()
    put(queue, gone, other)
    queue.withdraw(gone)
    assert queue.queued_tokens == 10
    assert taken(queue) == (other,)


def test_a_batch_past_its_deadline_never_reaches_the_engine(queue: StepQueue, clock: Clock) -> None:
    late, other = ticket(deadline_s=1.0), ticket(deadline_s=3.0)
    put(queue, late, other)
    clock.now_s = 2.0
    assert taken(queue) == (other,)


def test_batches_of_a_failed_step_run_next_and_each_by_itself(queue: StepQueue) -> None:
    first, second, third = ticket(), ticket(), ticket()
    put(queue, first, second)
    assert taken(queue) == (first, second)
    queue.put(third)
    queue.put_back_apart((first, second), now_s=5.0)
    assert [taken(queue) for _ in range(3)] == [(first,), (second,), (third,)]
    assert first.ready_s == 5.0


def test_a_batch_withdrawn_while_its_step_failed_is_not_run_again(queue: StepQueue) -> None:
    first, second = ticket(), ticket()
    put(queue, first, second)
    taken(queue)
    queue.withdraw(first)
    queue.put_back_apart((first, second), now_s=0.0)
    assert taken(queue) == (second,)


def test_a_drained_queue_refuses_until_it_is_opened_again(queue: StepQueue) -> None:
    first = ticket()
    queue.put(first)
    assert queue.drain() == (first,)
    with pytest.raises(NotServing):
        queue.put(ticket())
    queue.open(BOUNDS)
    queue.put(ticket())
    assert queue.queued_tokens == 10


def test_a_closed_queue_takes_nothing_but_gives_out_what_waits(queue: StepQueue) -> None:
    first = ticket()
    queue.put(first)
    queue.close()
    with pytest.raises(NotServing, match="stopping"):
        queue.put(ticket())
    assert taken(queue) == (first,)
    assert queue.take() is None
    assert queue.stage(prepared([])) is False


def prepared(calls: list[Sequence[Ticket]]) -> Callable[[Sequence[Ticket]], Step]:
    engine = FakeEngine()

    def prepare(tickets: Sequence[Ticket]) -> Step:
        calls.append(tuple(tickets))
        return engine.prepare(np.ones(1, np.int32), np.ones(1, np.int32))

    return prepare


def test_while_a_step_runs_the_next_is_staged_and_handed_over_ready(queue: StepQueue) -> None:
    calls: list[Sequence[Ticket]] = []
    prepare = prepared(calls)
    first, second = ticket(), ticket()
    queue.put(first)
    taken(queue)
    queue.put(second)
    assert queue.stage(prepare)
    following = queue.take()
    assert following is not None
    assert following.selection.batches == (second,)
    assert following.step is not None
    assert calls == [(second,)]


def test_a_batch_that_comes_after_staging_is_staged_with_the_others(queue: StepQueue) -> None:
    calls: list[Sequence[Ticket]] = []
    prepare = prepared(calls)
    put(queue, ticket())
    taken(queue)
    second, third = ticket(), ticket()
    queue.put(second)
    queue.stage(prepare)
    queue.put(third)
    queue.stage(prepare)
    following = queue.take()
    assert following is not None
    assert following.selection.batches == (second, third)
    assert following.step is not None
    assert calls == [(second,), (second, third)]


def test_a_staged_step_whose_sender_has_gone_is_chosen_anew(queue: StepQueue) -> None:
    prepare = prepared([])
    put(queue, ticket())
    taken(queue)
    gone, other = ticket(), ticket()
    put(queue, gone, other)
    queue.stage(prepare)
    queue.withdraw(gone)
    following = queue.take()
    assert following is not None
    assert following.selection.batches == (other,)
    assert following.step is None, "what was staged held the withdrawn batch"


def test_a_step_that_cannot_be_prepared_is_left_to_the_engines_thread(queue: StepQueue) -> None:
    def prepare(_: Sequence[Ticket]) -> Step:
        raise RuntimeError("it reports this itself")

    put(queue, ticket())
    taken(queue)
    second = ticket()
    queue.put(second)
    assert queue.stage(prepare)
    following = queue.take()
    assert following is not None
    assert (following.selection.batches, following.step) == ((second,), None)


def test_nothing_is_staged_while_no_step_runs(queue: StepQueue) -> None:
    calls: list[Sequence[Ticket]] = []
    staging = Thread(target=queue.stage, args=(prepared(calls),), daemon=True)
    staging.start()
    queue.put(ticket())
    following = queue.take()
    assert following is not None
    assert following.step is None
    queue.close()
    staging.join(WAIT_S)
    assert not staging.is_alive()
    assert calls == []


def test_before_any_step_runs_nothing_is_staged(clock: Clock) -> None:
    calls: list[Sequence[Ticket]] = []
    for drained in (False, True):
        queue = StepQueue(clock)
        queue.open(BOUNDS)
        if drained:
            queue.put(ticket())
            taken(queue)
            queue.drain()
            queue.open(BOUNDS)
        queue.put(ticket())
        queue.close()
        assert queue.stage(prepared(calls)) is False
    assert calls == []


def test_a_queue_that_never_opened_closes_all_the_same(clock: Clock) -> None:
    queue = StepQueue(clock)
    queue.close()
    assert queue.take() is None


def test_a_step_is_not_taken_while_it_is_being_prepared(queue: StepQueue) -> None:
    put(queue, ticket())
    taken(queue)
    second = ticket()
    queue.put(second)
    found: list[NextStep | None] = []
    done = Event()

    def take() -> None:
        found.append(queue.take())
        done.set()

    taking = Thread(target=take, daemon=True)

    def prepare(tickets: Sequence[Ticket]) -> Step:
        taking.start()
        assert not done.wait(0.05)
        return prepared([])(tickets)

    queue.stage(prepare)
    assert done.wait(WAIT_S)
    assert found[0] is not None
    assert found[0].selection.batches == (second,)
    assert found[0].step is not None, "it was prepared, and is not prepared again"


def test_what_waits_is_counted_however_it_leaves(queue: StepQueue, clock: Clock) -> None:
    one, two, three = ticket(10), ticket(20), ticket(30, deadline_s=1.0)
    put(queue, one, two, three)
    assert queue.queued_tokens == 60
    queue.withdraw(one)
    assert queue.queued_tokens == 50
    clock.now_s = 1.0
    assert taken(queue) == (two,)
    assert queue.queued_tokens == 0
    queue.put_back_apart((two,), 0.0)
    assert queue.queued_tokens == 20
    assert queue.drain() == (two,)
    assert queue.queued_tokens == 0


def test_a_batch_that_just_fills_the_queue_is_taken(queue: StepQueue) -> None:
    put(queue, ticket(100), ticket(50))
    assert queue.queued_tokens == 150


def test_a_drain_forgets_what_was_staged(queue: StepQueue) -> None:
    put(queue, ticket())
    taken(queue)
    second = ticket()
    queue.put(second)
    queue.stage(prepared([]))
    assert queue.drain() == (second,)
    queue.open(BOUNDS)
    queue.put(second)
    following = queue.take()
    assert following is not None
    assert following.step is None
