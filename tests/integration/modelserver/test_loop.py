"""The engine's thread: merging, staging, reruns apart, recovery, rebuilding, the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelserver.engines.engine import Engine, EngineFacts, Spans
from modelserver.engines.synthetic import AcceleratorError
from modelserver.errors import DeviceLost, EngineBroken, NotServing, StepFailed, device_errors
from modelserver.loop import EngineLoop, EngineState
from modelserver.scheduler.embedding_steps import EmbeddingSteps
from modelserver.scheduler.queued_batch import Answer, Composition, MergeLimits, StepReport, Unclaimed
from modelserver.scheduler.step_queue import QueueBounds, StepQueue
from modelserver.service.batch import Batch
from modelserver.watch import TIMEOUTS_S, PhaseWatchdog
from tests.support.fake_step_engine import (
    BLANK,
    BROKEN,
    DEADLY,
    LOST,
    POISON,
    WAIT_S,
    Client,
    FakeStepEngine,
    batch_of,
    expected,
    facts_of,
    sized,
)


def bounds(facts: EngineFacts) -> QueueBounds:
    return QueueBounds(MergeLimits(facts.step_token_capacity, facts.step_query_capacity), 10_000)


class LoopOverFakes:
    """A engine_loop over fake engines, a client in front of it, and a clock that the test winds."""

    def __init__(self, *engines: Engine | Exception) -> None:
        self.now_s = 0.0
        self.client = Client()
        self.states: list[tuple[EngineState, Exception | None]] = []
        self.reports: list[StepReport] = []
        self.failed: list[Composition] = []
        self.unclaimed = Unclaimed()
        self._changed = threading.Condition()
        self._engines = iter(engines)
        self.queue = StepQueue(lambda: self.now_s)
        steps = EmbeddingSteps(
            self.queue, bounds, self.reports.append, self._failed, lambda: self.now_s, unclaimed=self.unclaimed
        )
        self.watch = PhaseWatchdog({**TIMEOUTS_S, "step": 5.0, "close": 2.0}, lambda: self.now_s)
        self.engine_loop = EngineLoop(self._build, steps, self._on_state, self.watch)
        self.engine_loop.start()

    def _failed(self, composition: Composition, _: float) -> None:
        self.failed.append(composition)

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


def opened(facts: EngineFacts | None = None) -> FakeStepEngine:
    """An engine whose steps do not wait."""
    engine = FakeStepEngine(facts or facts_of())
    engine.gate.set()
    return engine


def serving(*engines: FakeStepEngine) -> LoopOverFakes:
    loop = LoopOverFakes(*engines)
    loop.until(EngineState.SERVING)
    return loop


REBUILT = (EngineState.SERVING, EngineState.REBUILDING, EngineState.SERVING)


@pytest.fixture
def engine() -> FakeStepEngine:
    return opened()


@pytest.fixture
def loop(engine: FakeStepEngine) -> Iterator[LoopOverFakes]:
    loop = serving(engine)
    yield loop
    engine.gate.set()
    loop.close()


def answers(loop: LoopOverFakes, count: int) -> list[Answer]:
    outcomes = loop.client.wait(count)
    assert all(isinstance(outcome, Answer) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Answer)]


def hold(loop: LoopOverFakes, engine: FakeStepEngine, batch: Batch) -> None:
    """Keep the engine busy with a batch until the gate opens."""
    engine.gate.clear()
    loop.send(batch)
    assert engine.running.wait(WAIT_S)


def test_the_next_step_is_prepared_while_the_current_one_computes(loop: LoopOverFakes, engine: FakeStepEngine) -> None:
    hold(loop, engine, sized(4))
    assert engine.prepared.acquire(timeout=WAIT_S)
    loop.send(sized(5))
    assert engine.prepared.acquire(timeout=WAIT_S), "nothing was prepared while the engine was busy"
    assert engine.steps == [[4]]
    engine.gate.set()
    answers(loop, 2)
    assert engine.prepared_by == ["engine", "staging"]


def test_a_batch_without_second_segments_has_none_beside_one_that_has(
    loop: LoopOverFakes, engine: FakeStepEngine
) -> None:
    paired = replace(batch_of([1, 2, 3], [4, 5]), second_segments=np.array([1, 2], np.int32))
    hold(loop, engine, sized(4))
    loop.send(paired, sized(6))
    engine.gate.set()
    answers(loop, 3)
    assert engine.second_segments[0] is None
    assert engine.second_segments[-1] == [1, 2, 6], "the position of a query's end is nowhere"


def test_spans_have_their_rows_beside_a_batch_without_any(loop: LoopOverFakes, engine: FakeStepEngine) -> None:
    spans = Spans(np.array([2, 0], np.int32), np.array([[0, 1], [1, 3]], np.int32))
    hold(loop, engine, sized(4))
    loop.send(replace(batch_of([1, 2, 3], [4, 5]), spans=spans), sized(6))
    engine.gate.set()
    _, documents, whole = answers(loop, 3)
    assert documents.matrix.tolist() == [[1, 1], [5, 2], [9, 2]]
    assert whole.matrix.tolist() == [[42, 6]]
    assert documents.step.queries == 3, "queries, not rows"


def test_when_a_merged_step_fails_the_innocent_are_answered_apart(loop: LoopOverFakes, engine: FakeStepEngine) -> None:
    innocent, poisoned, bystander = batch_of([1], [2]), batch_of([3], [POISON]), batch_of([4])
    hold(loop, engine, sized(4))
    loop.send(innocent, poisoned, bystander)
    engine.gate.set()
    _, good, bad, also_good = loop.client.wait(4)
    assert isinstance(good, Answer)
    assert isinstance(also_good, Answer)
    assert (good.matrix.tolist(), also_good.matrix.tolist()) == (expected(innocent), expected(bystander))
    assert isinstance(bad, StepFailed)
    assert engine.steps == [[4], [1, 1, 1, 1, 1], [1, 1], [1, 1], [1]]
    assert loop.failed == [Composition.MERGED, Composition.ISOLATED]
    assert good.step.composition is Composition.ISOLATED


def test_a_broken_engine_refuses_the_waiting_and_a_new_engine_serves() -> None:
    first, second = FakeStepEngine(), opened()
    loop = serving(first, second)
    hold(loop, first, batch_of([DEADLY]))
    loop.send(sized(100), sized(3))
    first.gate.set()
    culprit, *innocent = loop.client.wait(3)
    assert isinstance(culprit, StepFailed)
    assert all(isinstance(outcome, NotServing) for outcome in innocent)
    loop.until(*REBUILT)
    assert first.closed
    loop.send(sized(5))
    assert isinstance(loop.client.wait(4)[3], Answer)
    assert second.steps == [[5]]
    loop.close()


def test_of_a_merged_step_that_breaks_the_engine_nobody_is_blamed() -> None:
    first, second = FakeStepEngine(), opened()
    loop = serving(first, second)
    hold(loop, first, sized(4))
    loop.send(batch_of([DEADLY]), batch_of([1]))
    first.gate.set()
    _, *merged = loop.client.wait(3)
    assert all(isinstance(outcome, EngineBroken) for outcome in merged)
    loop.until(*REBUILT)
    loop.close()


def test_a_report_tells_a_steps_time_the_idle_time_before_it_and_the_wait() -> None:
    engine = FakeStepEngine()
    loop = serving(engine)
    loop.now_s = 10.0
    hold(loop, engine, sized(4))
    loop.now_s = 11.0
    loop.send(sized(6))
    loop.now_s = 13.0
    engine.gate.set()
    first, second = answers(loop, 2)
    assert (first.step.idle_before_s, first.step.duration_s, first.staged_s) == (10.0, 3.0, 0.0)
    assert (second.step.idle_before_s, second.step.duration_s, second.staged_s) == (0.0, 0.0, 2.0)
    assert loop.watch.overdue() is None
    loop.close()


def test_an_engine_that_loses_a_vector_has_failed_its_step(loop: LoopOverFakes) -> None:
    loop.send(batch_of([LOST]))
    loop.client.wait(1)
    loop.send(batch_of([1]))
    lost, good = loop.client.wait(2)
    assert isinstance(lost, StepFailed)
    assert "0 vectors, and 1 were asked for" in str(lost)
    assert isinstance(good, Answer)


def test_a_step_that_takes_too_long_is_noticed(loop: LoopOverFakes, engine: FakeStepEngine) -> None:
    loop.now_s = 5.0
    hold(loop, engine, sized(4))
    loop.now_s = 10.0
    assert loop.watch.overdue() is None
    loop.now_s = 10.1
    assert loop.watch.overdue() == "step takes longer than 5 s"


def test_eight_failed_steps_in_a_row_take_the_engine_out_of_service(engine: FakeStepEngine) -> None:
    loop = serving(engine, opened())
    for _ in range(7):
        loop.send(batch_of([POISON], isolated=True))
    loop.send(batch_of([1], isolated=True))
    for _ in range(7):
        loop.send(batch_of([POISON], isolated=True))
    loop.client.wait(15)
    assert [state for state, _ in loop.states] == [EngineState.SERVING], "a good step in between counts"
    loop.send(batch_of([POISON], isolated=True))
    loop.until(*REBUILT)
    assert engine.closed
    loop.close()


def lost(loop: LoopOverFakes, count: int) -> list[list[bool] | None]:
    """Which rows of each of the first `count` answers are broken; None: no row."""
    return [None if each.broken is None else each.broken.tolist() for each in answers(loop, count)]


def test_a_broken_row_of_a_merged_step_is_a_fault_of_its_query_alone(
    loop: LoopOverFakes, engine: FakeStepEngine
) -> None:
    hold(loop, engine, sized(4))
    loop.send(batch_of([1], [2]), batch_of([3], [BROKEN]), batch_of([BLANK], [4]))
    engine.gate.set()
    assert lost(loop, 4) == [None, None, [False, True], [True, False]]
    assert engine.steps == [[4], [1, 1, 1, 1, 1, 1]], "nothing runs again here"
    assert loop.failed == []


@pytest.mark.parametrize("lie", [BROKEN, BLANK])
def test_eight_steps_in_a_row_without_a_usable_row_end_the_service(engine: FakeStepEngine, lie: int) -> None:
    loop = serving(engine, opened())
    for _ in range(7):
        loop.send(batch_of([lie], [lie], isolated=True), batch_of([lie], [1], isolated=True))
    loop.client.wait(14)
    assert [state for state, _ in loop.states] == [EngineState.SERVING], "a step with a usable row does not count"
    loop.send(batch_of([lie], isolated=True))
    loop.until(*REBUILT)
    assert engine.closed
    loop.close()


def test_a_usable_step_ends_the_count_of_those_without_a_usable_row(engine: FakeStepEngine) -> None:
    loop = serving(engine)
    for _ in range(2):
        for _ in range(7):
            loop.send(batch_of([BROKEN], isolated=True))
        loop.send(batch_of([1], isolated=True))
    assert lost(loop, 16) == ([[True]] * 7 + [None]) * 2
    assert [state for state, _ in loop.states] == [EngineState.SERVING]
    loop.close()


def test_a_row_of_zeros_is_a_result_where_the_model_may_give_one() -> None:
    loop = serving(opened(replace(facts_of(), rectified=True)))
    loop.send(batch_of([BLANK], [BROKEN]))
    assert lost(loop, 1) == [[False, True]]
    loop.close()


def test_the_time_of_a_step_that_raised_is_unclaimed(loop: LoopOverFakes, engine: FakeStepEngine) -> None:
    hold(loop, engine, batch_of([POISON]))
    loop.now_s = 3.0
    engine.gate.set()
    loop.client.wait(1)
    assert (loop.unclaimed.take(), loop.unclaimed.take()) == (3.0, 0.0)


def test_an_engine_that_breaks_again_before_a_good_step_ends_the_process(engine: FakeStepEngine) -> None:
    loop = serving(engine, opened())
    loop.send(batch_of([1]), batch_of([DEADLY], isolated=True))
    loop.until(*REBUILT)
    loop.send(batch_of([DEADLY], isolated=True))
    loop.until(*REBUILT, EngineState.FAILED)


def test_on_a_gpu_a_broken_engine_is_not_rebuilt_in_the_same_process() -> None:
    loop = serving(opened(replace(facts_of(), on_cpu=False)), FakeStepEngine())
    loop.send(batch_of([DEADLY]))
    loop.until(EngineState.SERVING, EngineState.FAILED)


@pytest.mark.parametrize(("error", "lost"), [("device-side assert triggered", True), ("out of memory", False)])
def test_only_an_error_that_the_gpu_keeps_ends_the_process(error: str, lost: bool) -> None:
    def step() -> None:
        with device_errors():
            raise AcceleratorError(f"CUDA error: {error}")

    with pytest.raises(DeviceLost if lost else AcceleratorError, match=error):
        step()


@settings(max_examples=30)
@given(
    st.lists(
        st.lists(st.lists(st.sampled_from([1, 2, 3, POISON]), min_size=1, max_size=4), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_every_batch_gets_one_outcome_and_only_those_with_poison_fail(batches: list[list[list[int]]]) -> None:
    engine = opened()
    loop = serving(engine)
    sent = [batch_of(*queries) for queries in batches]
    hold(loop, engine, sized(4))
    loop.send(*sent)
    engine.gate.set()
    outcomes = loop.client.wait(1 + len(sent))[1:]
    for batch, outcome in zip(sent, outcomes, strict=True):
        if POISON in batch.token_ids:
            assert isinstance(outcome, StepFailed)
        else:
            assert isinstance(outcome, Answer)
            assert outcome.matrix.tolist() == expected(batch)
    loop.close()
