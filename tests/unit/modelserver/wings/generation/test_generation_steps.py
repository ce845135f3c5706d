"""The loop of a generating engine: commands between steps, one message a step, a slow reader holds nobody up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from typing_extensions import override

from modelserver.engines.engine import EngineFacts, Task
from modelserver.engines.synthetic import Poison, synthetic_facts
from modelserver.loop import EngineLoop, EngineState
from modelserver.watch import PhaseWatchdog
from modelserver.wings.generation.outbox import Outbox
from modelserver.wings.generation.step_limits import StepCost, StepLimits, StepTokens
from modelserver.wings.generation.steps import Abort, GenerationStep, GenerationSteps, Leave, Start
from modelserver.wings.generation.synthetic import SyntheticGenerator
from protos.modelserver.v1 import modelserver_pb2 as pb

WAIT_S = 20.0
VOCABULARY = 1000


def facts(kv_tokens: int = 4096) -> EngineFacts:
    made = synthetic_facts(
        dimensions=0, max_input_tokens=256, vocabulary_size=VOCABULARY, step_tokens=64, step_queries=8
    )
    return replace(made, tasks=frozenset((Task.GENERATE,)), context_tokens=256, max_sequences=8, kv_tokens=kv_tokens)


def engine() -> SyntheticGenerator:
    return SyntheticGenerator(facts(), 0.0, 0.0, None, sleep=lambda _: None)


class Reader:
    """What one caller has got."""

    def __init__(self) -> None:
        self.news = threading.Event()
        self.outbox = Outbox(self.news.set)
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, pb.FinishedSequence] = {}
        self.messages: list[pb.GenerateStep] = []

    def read(self) -> None:
        step = self.outbox.take()
        if step is None:
            return
        self.messages.append(step)
        numbers = np.frombuffer(step.sequences, "<u4").tolist()
        counts = np.frombuffer(step.counts, "<u4").tolist()
        ids = iter(np.frombuffer(step.token_ids, "<i4").tolist())
        for number, size in zip(numbers, counts, strict=True):
            self.tokens.setdefault(number, []).extend(next(ids) for _ in range(size))
        self.finished |= {each.sequence: each for each in step.finished}

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self.news.wait(WAIT_S), "nothing came"
            self.news.clear()
            self.read()


class Running:
    """A loop at work."""

    def __init__(self, build: Callable[[], SyntheticGenerator]) -> None:
        self.states: list[EngineState] = []
        self.steps: list[GenerationStep] = []
        self.failed = 0
        self.served_again = threading.Event()
        self.work = GenerationSteps(_limits, self.steps.append, self._failed)
        self.loop = EngineLoop(build, self.work, self._state, PhaseWatchdog())
        self.loop.start()

    def close(self) -> None:
        self.work.close()
        assert self.loop.join(WAIT_S)

    def _state(self, state: EngineState, _error: Exception | None) -> None:
        self.states.append(state)
        if self.states.count(EngineState.SERVING) > 1:
            self.served_again.set()

    def _failed(self, _: float) -> None:
        self.failed += 1

    def start(
        self, reader: Reader, number: int, tokens: int = 5, prompt: Sequence[int] = (1, 2, 3), seed: int = 0
    ) -> None:
        sampling = pb.Sampling(max_tokens=tokens, seed=seed)
        self.work.do(Start(reader.outbox, number, prompt, sampling))


def _limits(made: EngineFacts) -> StepLimits:
    cost = StepCost(0.0, 1e-9, 1e-9)
    return StepLimits(StepTokens(cost, 1.0, made.step_token_capacity, made.max_sequences), None)


@pytest.fixture
def running() -> Iterator[Running]:
    started = Running(engine)
    yield started
    started.close()


def test_each_caller_gets_its_own_sequences_to_their_ends(running: Running) -> None:
    first, second = Reader(), Reader()
    running.start(first, 1, tokens=4)
    running.start(second, 1, tokens=6, prompt=(9, 9))
    first.until(lambda: 1 in first.finished)
    second.until(lambda: 1 in second.finished)
    assert (len(first.tokens[1]), len(second.tokens[1])) == (4, 6)
    assert first.finished[1].length
    assert running.work.sequences == 0


def test_a_slow_reader_gets_many_steps_in_one_message(running: Running) -> None:
    slow, quick = Reader(), Reader()
    running.start(slow, 1, tokens=30)
    running.start(quick, 1, tokens=40)
    quick.until(lambda: 1 in quick.finished)
    slow.read()
    assert len(slow.messages) == 1
    assert len(slow.tokens[1]) == 30


def test_what_is_aborted_gains_nothing_more_and_its_caller_hears_nothing(running: Running) -> None:
    reader = Reader()
    running.start(reader, 1, tokens=200)
    running.work.do(Abort(reader.outbox, 1))
    running.work.do(Abort(reader.outbox, 99))
    running.start(reader, 2, tokens=3)
    reader.until(lambda: 2 in reader.finished)
    assert 1 not in reader.finished
    assert running.work.sequences == 0


def test_who_leaves_takes_all_of_its_sequences_along(running: Running) -> None:
    leaver, other = Reader(), Reader()
    for number in range(5):
        running.start(leaver, number, tokens=250)
    running.work.do(Leave(leaver.outbox))
    running.start(other, 1, tokens=3)
    other.until(lambda: 1 in other.finished)
    assert running.work.sequences == 0


def test_a_step_that_fails_fails_all_that_ran_and_the_engine_goes_on() -> None:
    both_came = threading.Event()

    def wait(_s: float) -> None:
        both_came.wait(WAIT_S)

    poisoned = SyntheticGenerator(facts(), 0.0, 0.0, Poison(666, "error"), sleep=wait)
    running = Running(lambda: poisoned)
    reader = Reader()
    running.start(reader, 1, tokens=100)
    running.start(reader, 2, prompt=(1, 666))
    both_came.set()
    reader.until(lambda: {1, 2} <= reader.finished.keys())
    assert {reader.finished[number].code for number in (1, 2)} == {13}
    running.start(reader, 3)
    reader.until(lambda: 3 in reader.finished)
    assert reader.finished[3].code == 0
    assert running.failed == 1
    running.close()


def test_once_closed_what_runs_is_finished_and_no_more_is_taken() -> None:
    running = Running(engine)
    reader = Reader()
    running.start(reader, 1, tokens=50)
    running.work.close()
    running.start(reader, 2)
    reader.until(lambda: {1, 2} <= reader.finished.keys())
    assert (reader.finished[1].code, reader.finished[2].code) == (0, 14)
    assert running.loop.join(WAIT_S)


class Refusing(SyntheticGenerator):
    """It takes no sampling parameters."""

    @override
    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling, turn_s: float = 0.0) -> None:
        raise ValueError("top_p must be in (0, 1]")

    @override
    def abort(self, names: Collection[str]) -> None:
        raise AssertionError(names)


def test_what_the_engine_refuses_is_the_senders_fault() -> None:
    running = Running(lambda: Refusing(facts(), 0.0, 0.0, sleep=lambda _: None))
    reader = Reader()
    running.start(reader, 1)
    reader.until(lambda: 1 in reader.finished)
    assert (reader.finished[1].code, reader.finished[1].message) == (3, "top_p must be in (0, 1]")
    running.close()


class Raising(SyntheticGenerator):
    """Cannot take a seed."""

    @override
    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling, turn_s: float = 0.0) -> None:
        if sampling.seed:
            raise KeyError("what the prompt says")
        super().add(name, token_ids, sampling, turn_s)


def test_a_sequence_that_the_engine_cannot_take_ends_no_other() -> None:
    running = Running(lambda: Raising(facts(), 0.0, 0.0, None, sleep=lambda _: None))
    reader = Reader()
    running.start(reader, 1, tokens=40)
    running.start(reader, 2, seed=7)
    reader.until(lambda: {1, 2} <= reader.finished.keys())
    assert (reader.finished[1].code, len(reader.tokens[1])) == (0, 40)
    assert (reader.finished[2].code, reader.finished[2].message) == (
        13,
        "the engine cannot take the sequence: KeyError",
    )
    running.close()


def test_closing_takes_as_long_as_it_is_set_to() -> None:
    slept: list[float] = []
    SyntheticGenerator(facts(), 0.0, 0.0, sleep=slept.append, close_s=3.0).close()
    assert slept == [3.0]
