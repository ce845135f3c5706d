"""The size from which on a step gets all threads is the one from which on they are quicker, measured at start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from modelserver.engines.engine import EngineFacts, IdArray, Matrix, StepThreads
from modelserver.wings.profile.threads import measure_threads
from tests.support.fake_step_engine import facts_of

FACTS = replace(facts_of(step_tokens=4096, step_queries=1365, max_input_tokens=256), dimensions=1)
COUNT = 2


@dataclass(slots=True)
class Machine:
    """An engine and the time that its steps take: `step_s` of tokens and threads."""

    step_s: Callable[[int, int], float]
    facts: EngineFacts = FACTS
    count: int = COUNT
    now_s: float = 0.0
    in_use: int = COUNT
    steps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    threads: StepThreads = field(init=False)

    def __post_init__(self) -> None:
        self.in_use = self.count
        self.threads = StepThreads(self.count, self._use)

    def _use(self, threads: int) -> None:
        self.in_use = threads

    def prepare(self, token_ids: IdArray, lengths: IdArray) -> MachineStep:
        assert lengths.sum() == token_ids.size
        return MachineStep(self, token_ids.size, lengths.size)

    def recover(self) -> None:
        pass

    def close(self) -> None:
        pass

    def measured(self) -> int:
        bound = measure_threads(self, self.threads, lambda: self.now_s)
        self.threads.threaded_tokens = bound
        return bound

    def threads_of(self, tokens: int) -> int:
        with self.threads.of(tokens):
            return self.in_use


@dataclass(frozen=True, slots=True)
class MachineStep:
    machine: Machine
    tokens: int
    queries: int

    def execute(self) -> Matrix:
        with self.machine.threads.of(self.tokens):
            self.machine.steps.append((self.tokens, self.machine.in_use))
            self.machine.now_s += self.machine.step_s(self.tokens, self.machine.in_use)
        return np.zeros((self.queries, 1), np.float32)


def barriers(wake_s: float) -> Callable[[int, int], float]:
    """A step whose threads share its tokens and wait for each other, once woken."""
    return lambda tokens, threads: 2e-3 + tokens * 50e-6 / threads + (wake_s if threads > 1 else 0.0)


@pytest.mark.parametrize("breaks_even", [10, 80, 340, 1000])
def test_one_thread_computes_the_steps_that_several_would_make_slower(breaks_even: int) -> None:
    machine = Machine(barriers(wake_s=breaks_even * 25e-6))
    bound = machine.measured()
    assert breaks_even / 2**0.5 - 1 <= bound <= breaks_even + 1
    assert [machine.threads_of(tokens) for tokens in (bound - 1, bound)] == [1, COUNT]
    one, several = machine.step_s(bound - 1, 1), machine.step_s(bound - 1, COUNT)
    assert one <= several, "no step is slower than it would be with all threads"


def test_where_threads_are_woken_for_nothing_all_compute_every_step() -> None:
    assert Machine(barriers(wake_s=0.0)).measured() == 0


def test_if_one_thread_is_never_slower_unmeasured_larger_steps_get_all() -> None:
    machine = Machine(lambda tokens, threads: tokens * threads * 1e-5)
    assert machine.measured() == 1025
    assert machine.threads_of(1025) == COUNT


def test_beside_other_work_the_start_waits_for_no_long_steps() -> None:
    machine = Machine(lambda tokens, threads: tokens * threads * 1e-4)
    assert machine.measured() == 513, "one thread takes 51 ms"
    assert max(tokens for tokens, _ in machine.steps) == 512


def test_a_size_is_settled_once_most_of_nine_turns_are_won() -> None:
    machine = Machine(barriers(wake_s=1.0), replace(FACTS, step_token_capacity=8))
    machine.measured()
    assert machine.steps == [(8, 1), *[(8, 1), (8, COUNT)] * 5]


def test_a_step_that_was_disturbed_does_not_decide() -> None:
    quiet_s = barriers(wake_s=340 * 25e-6)
    disturbed = Machine(quiet_s)

    def step_s(tokens: int, threads: int) -> float:
        return quiet_s(tokens, threads) + (0.5 if len(disturbed.steps) % 5 == 0 else 0.0)

    disturbed.step_s = step_s
    assert disturbed.measured() == Machine(quiet_s).measured()


def test_no_step_larger_than_the_engine_holds_is_measured() -> None:
    machine = Machine(barriers(wake_s=1.0), replace(FACTS, step_token_capacity=100))
    machine.measured()
    assert max(tokens for tokens, _ in machine.steps) <= 100


def test_an_engine_with_one_thread_measures_nothing() -> None:
    machine = Machine(barriers(wake_s=1.0), count=1)
    assert machine.measured() == 0
    assert machine.steps == []
