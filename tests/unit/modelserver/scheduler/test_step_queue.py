"""What waits for the engine: bounds, order, senders that go away, and the step that is staged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from threading import Event, Thread

import grpc
import numpy as np
import pytest

from modelserver.engines.engine import Step
from modelserver.errors import NotServing, QueueFull
from modelserver.scheduler.queued_batch import Composition, MergeLimits, QueuedBatch, Selection
from modelserver.scheduler.step_queue import NextStep, QueueBounds, StepQueue
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_step_engine import WAIT_S, Client, FakeStepEngine, sized
from tests.support.virtual_time import ManualClock

URGENT = pb.PRIORITY_INTERACTIVE
BOUNDS = QueueBounds(MergeLimits(step_tokens=100, step_queries=50), max_queued_tokens=150)
WIDE = QueueBounds(BOUNDS.limits, max_queued_tokens=1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> StepQueue:
    queue = StepQueue(clock)
    queue.open(BOUNDS)
    return queue


def queued(
    tokens: int = 10,
    priority: pb.Priority = pb.PRIORITY_DEFAULT,
    *,
    isolated: bool = False,
    ready_s: float = 0.0,
    deadline_s: float = math.inf,
) -> QueuedBatch:
    batch = sized(tokens, isolated=isolated)
    return Client().queued(batch, ready_s=ready_s, deadline_s=deadline_s, priority=priority)


def put(queue: StepQueue, *queued_batches: QueuedBatch) -> None:
    for one in queued_batches:
        queue.put(one)


def following(queue: StepQueue) -> NextStep:
    step = queue.take()
    assert step is not None
    return step


def taken(queue: StepQueue) -> tuple[QueuedBatch, ...]:
    return following(queue).selection.batches


def under_way(queue: StepQueue, *then: QueuedBatch) -> None:
    """One batch runs, and these wait."""
    put(queue, queued())
    taken(queue)
    put(queue, *then)


def test_above_the_bound_a_batch_is_refused_unless_nothing_waits(queue: StepQueue) -> None:
    queue.put(queued(1000))
    assert len(taken(queue)) == 1
    put(queue, queued(100), queued(50))
    with pytest.raises(QueueFull, match="150 tokens wait already") as refused:
        queue.put(queued(1))
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert queue.queued_tokens == 150


def test_a_withdrawn_batch_never_reaches_the_engine(queue: StepQueue) -> None:
    gone, other = queued(), queued()
    put(queue, gone, other)
    queue.withdraw(gone)
    assert queue.queued_tokens == 10
    assert taken(queue) == (other,)


def test_a_batch_past_its_deadline_never_reaches_the_engine(queue: StepQueue, clock: ManualClock) -> None:
    late, other = queued(deadline_s=1.0), queued(deadline_s=3.0)
    put(queue, late, other)
    clock.now_s = 2.0
    assert taken(queue) == (other,)


def test_batches_of_a_failed_step_run_next_and_each_by_itself(queue: StepQueue) -> None:
    first, second, third = queued(), queued(), queued()
    put(queue, first, second)
    assert taken(queue) == (first, second)
    queue.put(third)
    queue.put_back_isolated((first, second), now_s=5.0)
    assert [taken(queue) for _ in range(3)] == [(first,), (second,), (third,)]
    assert first.ready_s == 5.0


def test_a_batch_withdrawn_while_its_step_failed_is_not_run_again(queue: StepQueue) -> None:
    first, second = queued(), queued()
    put(queue, first, second)
    taken(queue)
    queue.withdraw(first)
    queue.put_back_isolated((first, second), now_s=0.0)
    assert taken(queue) == (second,)


def test_a_drained_queue_refuses_until_it_is_opened_again(queue: StepQueue) -> None:
    first = queued()
    queue.put(first)
    assert queue.drain() == (first,)
    with pytest.raises(NotServing):
        queue.put(queued())
    queue.open(BOUNDS)
    queue.put(queued())
    assert queue.queued_tokens == 10


def test_a_closed_queue_takes_nothing_but_gives_out_what_waits(queue: StepQueue) -> None:
    first = queued()
    queue.put(first)
    queue.close()
    with pytest.raises(NotServing, match="stopping"):
        queue.put(queued())
    assert taken(queue) == (first,)
    assert queue.take() is None
    assert queue.stage(prepared([])) is False


def prepared(calls: list[Sequence[QueuedBatch]]) -> Callable[[Sequence[QueuedBatch]], Step]:
    engine = FakeStepEngine()

    def prepare(queued_batches: Sequence[QueuedBatch]) -> Step:
        calls.append(tuple(queued_batches))
        return engine.prepare(np.ones(1, np.int32), np.ones(1, np.int32))

    return prepare


def test_while_a_step_runs_the_next_is_staged_with_what_comes_later(
    queue: StepQueue,
) -> None:
    calls: list[Sequence[QueuedBatch]] = []
    second, third = queued(), queued()
    under_way(queue, second)
    assert queue.stage(prepared(calls))
    queue.put(third)
    assert queue.stage(prepared(calls))
    staged = following(queue)
    assert (staged.selection.batches, calls) == ((second, third), [(second,), (second, third)])
    assert staged.step is not None


def test_a_staged_step_whose_sender_has_gone_is_chosen_anew(queue: StepQueue) -> None:
    gone, other = queued(), queued()
    under_way(queue, gone, other)
    queue.stage(prepared([]))
    queue.withdraw(gone)
    chosen = following(queue)
    assert chosen.selection.batches == (other,)
    assert chosen.step is None, "what was staged held the withdrawn batch"


def test_a_step_that_cannot_be_prepared_is_left_to_the_engines_thread(queue: StepQueue) -> None:
    def prepare(_: Sequence[QueuedBatch]) -> Step:
        raise RuntimeError("it reports this itself")

    second = queued()
    under_way(queue, second)
    assert queue.stage(prepare)
    left = following(queue)
    assert (left.selection.batches, left.step) == ((second,), None)


def test_before_any_step_runs_nothing_is_staged(clock: ManualClock) -> None:
    calls: list[Sequence[QueuedBatch]] = []
    for drained in (False, True):
        queue = StepQueue(clock)
        queue.open(BOUNDS)
        if drained:
            queue.put(queued())
            taken(queue)
            queue.drain()
            queue.open(BOUNDS)
        queue.put(queued())
        queue.close()
        assert queue.stage(prepared(calls)) is False
    assert calls == []


def test_a_step_is_not_taken_while_it_is_being_prepared(queue: StepQueue) -> None:
    second = queued()
    under_way(queue, second)
    found: list[NextStep | None] = []
    done = Event()

    def take() -> None:
        found.append(queue.take())
        done.set()

    taking = Thread(target=take, daemon=True)

    def prepare(queued_batches: Sequence[QueuedBatch]) -> Step:
        taking.start()
        assert not done.wait(0.05)
        return prepared([])(queued_batches)

    queue.stage(prepare)
    assert done.wait(WAIT_S)
    assert found[0] is not None
    assert found[0].selection.batches == (second,)
    assert found[0].step is not None, "it was prepared, and is not prepared again"


def test_what_waits_is_counted_however_it_leaves(queue: StepQueue, clock: ManualClock) -> None:
    one, two, three = queued(10), queued(20), queued(30, deadline_s=1.0)
    put(queue, one, two, three)
    assert queue.queued_tokens == 60
    queue.withdraw(one)
    assert queue.queued_tokens == 50
    clock.now_s = 1.0
    assert taken(queue) == (two,)
    assert queue.queued_tokens == 0
    queue.put_back_isolated((two,), 0.0)
    assert queue.queued_tokens == 20
    assert queue.drain() == (two,)
    assert queue.queued_tokens == 0


def test_a_drain_forgets_what_was_staged(queue: StepQueue) -> None:
    second = queued()
    under_way(queue, second)
    queue.stage(prepared([]))
    assert queue.drain() == (second,)
    queue.open(BOUNDS)
    queue.put(second)
    assert following(queue).step is None


def test_an_urgent_batch_of_any_sender_goes_before_what_waits(queue: StepQueue) -> None:
    queue.open(WIDE)
    bulk, usual, question = (queued(90, each) for each in (pb.PRIORITY_BACKGROUND, pb.PRIORITY_DEFAULT, URGENT))
    under_way(queue, bulk, usual, question)
    assert [taken(queue), taken(queue), taken(queue)] == [(question,), (usual,), (bulk,)]


def test_a_staged_step_gives_way_to_an_urgent_batch(queue: StepQueue) -> None:
    bulk, question = queued(60, pb.PRIORITY_BACKGROUND), queued(60, URGENT)
    under_way(queue, bulk)
    queue.stage(lambda _: FakeStepEngine().prepare(np.zeros(1, np.int32), np.ones(1, np.int32)))
    queue.put(question)
    assert following(queue) == NextStep(Selection((question,), Composition.SINGLE), None)
    assert taken(queue) == (bulk,)


def test_aged_and_urgent_batches_take_turns(clock: ManualClock) -> None:
    bulk = [queued(90, pb.PRIORITY_BACKGROUND) for _ in range(2)]
    clock.now_s = 1.0
    questions = [queued(90, URGENT, ready_s=1.0) for _ in range(3)]
    queue = StepQueue(clock)
    queue.open(WIDE)
    put(queue, *bulk, *questions)
    order = [taken(queue)[0] for _ in range(5)]
    assert order == [bulk[0], questions[0], bulk[1], questions[1], questions[2]]


def test_a_batch_ages_within_half_the_time_that_its_sender_gives(queue: StepQueue, clock: ManualClock) -> None:
    hurried, question = queued(60, pb.PRIORITY_BACKGROUND, deadline_s=0.4), queued(60, URGENT)
    under_way(queue, hurried, question)
    clock.now_s = 0.2
    assert taken(queue) == (hurried,)


def test_single_batches_are_taken_by_class_and_age_too(queue: StepQueue, clock: ManualClock) -> None:
    bulk, question, later = queued(1, pb.PRIORITY_BACKGROUND), queued(1, URGENT), queued(1, URGENT)
    put(queue, bulk, question)
    assert queue.poll(lambda _: True) is question
    clock.now_s = 1.0
    queue.put(later)
    assert [queue.poll(lambda _: True) for _ in range(2)] == [bulk, later]


def test_the_classes_of_the_last_ten_seconds_are_told(queue: StepQueue, clock: ManualClock) -> None:
    assert queue.recent_priorities() == []
    put(queue, queued(1, URGENT), queued(1, pb.PRIORITY_BACKGROUND, ready_s=5.0))
    assert queue.recent_priorities() == [URGENT, pb.PRIORITY_BACKGROUND]
    clock.now_s = 10.0
    assert queue.recent_priorities() == [pb.PRIORITY_BACKGROUND]
