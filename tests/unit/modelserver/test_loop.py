"""The engine's thread: merging, staging, reruns apart, recovery, rebuilding, the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelserver.engines.engine import Engine, EngineFacts
from modelserver.errors import CannotStart, EngineBroken, NotServing, StepFailed
from modelserver.loop import EngineLoop, EngineState
from modelserver.scheduler.embedding_steps import EmbeddingSteps
from modelserver.scheduler.merge import Composition, MergeLimits
from modelserver.scheduler.queued_batch import Answer, StepReport
from modelserver.scheduler.step_queue import QueueBounds, StepQueue
from modelserver.service.batch import Batch
from tests.fakes.step_engine import DEADLY, LOST, POISON, WAIT_S, Client, FakeStepEngine, batch_of, expected, sized


def bounds(facts: EngineFacts) -> QueueBounds:
    return QueueBounds(MergeLimits(facts.step_token_capacity, facts.step_query_capacity), 10_000)


class Stage:
    """A engine_loop over fake engines, a client in front of it, and a clock that the test winds."""

    def __init__(self, *engines: Engine | Exception) -> None:
        self.now_s = 0.0
        self.client = Client()
        self.states: list[tuple[EngineState, Exception | None]] = []
        self.reports: list[StepReport] = []
        self.failed: list[Composition] = []
        self._changed = threading.Condition()
        self._engines = iter(engines)
        self.queue = StepQueue(lambda: self.now_s)
        steps = EmbeddingSteps(self.queue, bounds, self.reports.append, self.failed.append, lambda: self.now_s)
        self.engine_loop = EngineLoop(self._build, steps, self._on_state, lambda: self.now_s)
        self.engine_loop.start()

    def _build(self) -> Engine:
        engine = next(self._engines)
        if isinstance(engine, Exception):
            raise engine
        return engine

    def _on_state(self, state: EngineState, error: Exception | None) -> None:
        with self._changed:
            self.states.append((state, error))
            self._changed.notify_all()

    def until(self, *states: EngineState) -> None:
        with self._changed:
            reached = self._changed.wait_for(lambda: [state for state, _ in self.states] == list(states), WAIT_S)
            assert reached, self.states

    def send(self, *batches: Batch) -> None:
        for batch in batches:
            self.queue.put(self.client.queued(batch, ready_s=self.now_s))

    def close(self) -> None:
        self.queue.close()
        assert self.engine_loop.join(WAIT_S)


@pytest.fixture
def engine() -> FakeStepEngine:
    engine = FakeStepEngine()
    engine.gate.set()
    return engine


@pytest.fixture
def stage(engine: FakeStepEngine) -> Iterator[Stage]:
    stage = Stage(engine)
    stage.until(EngineState.SERVING)
    yield stage
    engine.gate.set()
    stage.close()


def answers(stage: Stage, count: int) -> list[Answer]:
    outcomes = stage.client.wait(count)
    assert all(isinstance(outcome, Answer) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Answer)]


def hold(stage: Stage, engine: FakeStepEngine, batch: Batch) -> None:
    """Keep the engine busy with a batch until the gate opens."""
    engine.gate.clear()
    stage.send(batch)
    assert engine.running.wait(WAIT_S)


def test_a_batch_gets_its_own_vectors(stage: Stage) -> None:
    batch = batch_of([1, 2], [5])
    stage.send(batch)
    (answer,) = answers(stage, 1)
    assert answer.matrix.tolist() == expected(batch)
    assert (answer.step.tokens, answer.step.queries, answer.step.composition) == (3, 2, Composition.SINGLE)


def test_batches_that_wait_while_the_engine_is_busy_share_a_step_and_are_answered_apart(
    stage: Stage, engine: FakeStepEngine
) -> None:
    running, first, second = sized(4), batch_of([1], [2, 3]), batch_of([9])
    hold(stage, engine, running)
    stage.send(first, second)
    engine.gate.set()
    _, one, two = answers(stage, 3)
    assert engine.steps == [[4], [1, 2, 1]]
    assert (one.matrix.tolist(), two.matrix.tolist()) == (expected(first), expected(second))
    assert one.step is two.step
    assert (one.step.tokens, one.step.batches, one.step.composition) == (4, 2, Composition.MERGED)


def test_the_next_step_is_prepared_while_the_current_one_computes(stage: Stage, engine: FakeStepEngine) -> None:
    hold(stage, engine, sized(4))
    assert engine.prepared.acquire(timeout=WAIT_S)
    stage.send(sized(5))
    assert engine.prepared.acquire(timeout=WAIT_S), "nothing was prepared while the engine was busy"
    assert engine.steps == [[4]]
    engine.gate.set()
    answers(stage, 2)
    assert engine.prepared_by == ["engine", "staging"]


def test_when_a_merged_step_fails_its_batches_run_again_apart_and_the_innocent_are_answered(
    stage: Stage, engine: FakeStepEngine
) -> None:
    innocent, poisoned, bystander = batch_of([1], [2]), batch_of([3], [POISON]), batch_of([4])
    hold(stage, engine, sized(4))
    stage.send(innocent, poisoned, bystander)
    engine.gate.set()
    _, good, bad, also_good = stage.client.wait(4)
    assert isinstance(good, Answer)
    assert isinstance(also_good, Answer)
    assert (good.matrix.tolist(), also_good.matrix.tolist()) == (expected(innocent), expected(bystander))
    assert isinstance(bad, StepFailed)
    assert engine.steps == [[4], [1, 1, 1, 1, 1], [1, 1], [1, 1], [1]]
    assert stage.failed == [Composition.MERGED, Composition.ALONE]
    assert good.step.composition is Composition.ALONE


def test_a_batch_that_fails_by_itself_is_reported_and_the_engine_goes_on(stage: Stage, engine: FakeStepEngine) -> None:
    stage.send(batch_of([POISON]))
    stage.client.wait(1)
    stage.send(batch_of([1]))
    bad, good = stage.client.wait(2)
    assert isinstance(bad, StepFailed)
    assert "RuntimeError: poison" in str(bad)
    assert isinstance(good, Answer)
    assert engine.recoveries == 1


def test_when_the_engine_breaks_the_waiting_are_refused_and_a_new_engine_serves() -> None:
    first, second = FakeStepEngine(), FakeStepEngine()
    second.gate.set()
    stage = Stage(first, second)
    stage.until(EngineState.SERVING)
    hold(stage, first, batch_of([DEADLY]))
    stage.send(sized(100), sized(3))
    first.gate.set()
    culprit, *innocent = stage.client.wait(3)
    assert isinstance(culprit, StepFailed)
    assert all(isinstance(outcome, NotServing) for outcome in innocent)
    stage.until(EngineState.SERVING, EngineState.REBUILDING, EngineState.SERVING)
    assert first.closed
    stage.send(sized(5))
    assert isinstance(stage.client.wait(4)[3], Answer)
    assert second.steps == [[5]]
    stage.close()


def test_of_a_merged_step_that_breaks_the_engine_nobody_is_blamed() -> None:
    first, second = FakeStepEngine(), FakeStepEngine()
    second.gate.set()
    stage = Stage(first, second)
    stage.until(EngineState.SERVING)
    hold(stage, first, sized(4))
    stage.send(batch_of([DEADLY]), batch_of([1]))
    first.gate.set()
    _, *merged = stage.client.wait(3)
    assert all(isinstance(outcome, EngineBroken) for outcome in merged)
    stage.until(EngineState.SERVING, EngineState.REBUILDING, EngineState.SERVING)
    stage.close()


def test_an_engine_that_cannot_be_built_ends_the_process() -> None:
    stage = Stage(CannotStart("no such model"))
    assert stage.engine_loop.join(WAIT_S)
    ((state, error),) = stage.states
    assert state is EngineState.FAILED
    assert isinstance(error, CannotStart)


def test_an_engine_that_cannot_be_rebuilt_ends_the_process() -> None:
    engine = FakeStepEngine()
    engine.gate.set()
    stage = Stage(engine, RuntimeError("out of memory"))
    stage.until(EngineState.SERVING)
    stage.send(batch_of([DEADLY]))
    assert stage.engine_loop.join(WAIT_S)
    assert [state for state, _ in stage.states] == [EngineState.SERVING, EngineState.REBUILDING, EngineState.FAILED]


def test_closing_answers_what_was_accepted_and_then_frees_the_engine(engine: FakeStepEngine) -> None:
    stage = Stage(engine)
    stage.until(EngineState.SERVING)
    hold(stage, engine, sized(4))
    stage.send(sized(60), sized(70))
    stage.queue.close()
    engine.gate.set()
    answers(stage, 3)
    assert stage.engine_loop.join(WAIT_S)
    assert engine.closed
    stage.until(EngineState.SERVING, EngineState.STOPPED)


def test_a_report_tells_the_steps_time_the_idle_time_before_it_and_the_wait() -> None:
    engine = FakeStepEngine()
    stage = Stage(engine)
    stage.until(EngineState.SERVING)
    stage.now_s = 10.0
    hold(stage, engine, sized(4))
    stage.now_s = 11.0
    stage.send(sized(6))
    stage.now_s = 13.0
    engine.gate.set()
    first, second = answers(stage, 2)
    assert (first.step.idle_before_s, first.step.duration_s, first.staged_s) == (10.0, 3.0, 0.0)
    assert (second.step.idle_before_s, second.step.duration_s, second.staged_s) == (0.0, 0.0, 2.0)
    assert stage.engine_loop.running_s() == 0.0
    stage.close()


def test_an_engine_that_loses_a_vector_has_failed_its_step(stage: Stage) -> None:
    stage.send(batch_of([LOST]))
    stage.client.wait(1)
    stage.send(batch_of([1]))
    lost, good = stage.client.wait(2)
    assert isinstance(lost, StepFailed)
    assert "0 vectors for 1 queries" in str(lost)
    assert isinstance(good, Answer)


def test_how_long_the_running_step_has_taken_can_be_asked(stage: Stage, engine: FakeStepEngine) -> None:
    stage.now_s = 5.0
    hold(stage, engine, sized(4))
    stage.now_s = 125.0
    assert stage.engine_loop.running_s() == 120.0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.sampled_from([1, 2, 3, POISON]), min_size=1, max_size=4), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_every_batch_gets_one_outcome_and_only_those_with_poison_fail(batches: list[list[list[int]]]) -> None:
    engine = FakeStepEngine()
    engine.gate.set()
    stage = Stage(engine)
    stage.until(EngineState.SERVING)
    sent = [batch_of(*queries) for queries in batches]
    hold(stage, engine, sized(4))
    stage.send(*sent)
    engine.gate.set()
    outcomes = stage.client.wait(1 + len(sent))[1:]
    for batch, outcome in zip(sent, outcomes, strict=True):
        if POISON in batch.token_ids:
            assert isinstance(outcome, StepFailed)
        else:
            assert isinstance(outcome, Answer)
            assert outcome.matrix.tolist() == expected(batch)
    stage.close()
