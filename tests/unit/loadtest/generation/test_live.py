"""A driver of a real engine, with one whose steps take no time but the clock's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from loadtest.generation.live.drive import Fixed, Measured, Static, drive
from loadtest.generation.live.rules import ByMemory, ByPaper, BySla, Least
from loadtest.generation.live.show import plot, table, with_gains
from loadtest.generation.work import Work, at_once
from modelserver.engines.engine import NewTokens, StepLoad
from modelserver.scheduler.memory import MemoryForm
from modelserver.scheduler.step_tokens import StepCost
from protos.modelserver.v1 import modelserver_pb2 as pb


@dataclass(slots=True)
class Engine:
    """Reads a prompt at once and gives a token a step to each of so many; a step takes 1 s."""

    now_s: float = 0.0
    sequences: int = 0
    left: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    most: int = 0

    @property
    def running(self) -> int:
        return min(len(self.left), self.sequences)

    @property
    def decoding(self) -> int:
        return sum(not prompt for prompt, _ in list(self.left.values())[: self.sequences])

    @property
    def has_work(self) -> bool:
        return bool(self.left)

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling) -> None:
        self.left[name] = [len(token_ids), sampling.max_tokens]

    def limit(self, step_tokens: int, sequences: int) -> None:
        del step_tokens
        self.sequences = sequences

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        self.now_s += 1.0
        running = list(self.left.items())[: self.sequences]
        self.most = max(self.most, len(running))
        load = StepLoad(sum(prompt for _, (prompt, _) in running), self.decoding)
        for name, left in running:
            left[:] = [0, left[1] - 1]
            if not left[1]:
                del self.left[name]
        return [NewTokens(name, [1], finished=not left[1], cut=False) for name, left in running], load


def driven(work: Work, static: Static | None = None, sequences: int = 2) -> Measured:
    engine = Engine()
    found = drive(engine, work, Fixed(sequences, 100), seed=1, static=static, clock=lambda: engine.now_s)
    assert engine.most <= sequences
    return found


def work(*outputs: int) -> Work:
    return at_once(np.full(len(outputs), 10), np.array(outputs))


def test_a_place_is_taken_again_at_once_and_in_a_static_batch_only_with_all_others() -> None:
    outputs = work(1, 4, 3)
    assert driven(outputs).seconds == 4.0
    assert driven(outputs, Static(2)).seconds == 7.0


def test_a_padded_batch_computes_every_row_to_its_longest_and_counts_what_was_asked_for() -> None:
    padded, static = driven(work(1, 4, 3), Static(2, padded=True)), driven(work(1, 4, 3), Static(2))
    assert (padded.tokens, padded.seconds) == (static.tokens, static.seconds) == (8, 7.0)
    assert padded.running > static.running


def test_requests_that_come_later_are_waited_for_at_no_cost() -> None:
    found = driven(Work([0.0, 100.0], [5, 5], [2, 3]))
    assert found.seconds == 103.0
    assert list(found.latency_s) == pytest.approx([2.5, 2.9])
    assert list(found.between_s) == [1.0, 1.0]
    assert (found.wait_s, found.recomputed) == (1.0, 0.0)


def test_a_memory_limit_lets_as_many_run_as_fit_and_never_fewer_than_do() -> None:
    rule = ByMemory(MemoryForm.LENGTH, 1000, 500, 64)
    assert rule.bounds(0, 0, 9) == (64, 2)
    for _ in range(30):
        rule.finished(50, 50)
    assert rule.bounds(0, 0, 9) == (64, 10)
    assert rule.bounds(12, 12, 9) == (64, 12)


def test_the_narrowest_of_several_rules_counts_and_all_of_them_learn() -> None:
    cost = StepCost(0.01, 0.01, 0.0001)
    memory = ByMemory(MemoryForm.LENGTH, 1000, 500, 64)
    both = Least([BySla(cost, 1.0, 64, 32), memory])
    assert both.bounds(0, 0, 9) == (64, 2)
    for _ in range(30):
        both.finished(10, 10)
    assert both.bounds(0, 0, 9) == (64, 32)
    for _ in range(50):
        both.stepped(StepLoad(0, 8), 10.0)
    assert both.bounds(8, 8, 9)[1] < 32


def test_the_papers_search_widens_while_steps_are_quick_and_hears_only_of_those_that_decode() -> None:
    rule = ByPaper(1.0, 64, 32)
    for _ in range(20):
        rule.stepped(StepLoad(64, 0), 9.0)
    assert rule.bounds(0, 0, 9) == (64, 16)
    for _ in range(20):
        rule.stepped(StepLoad(0, 16), 0.1)
    assert rule.bounds(0, 0, 9)[1] > 16


def test_gains_are_over_the_fixed_batch_of_the_same_lengths() -> None:
    place = {"model": "m", "prompt": 1.0, "output": 2.0, "running": 1.0, "recomputed": 0.0}
    rows = with_gains(
        [{"way": "fixed", "tokens_per_s": 10.0, **place}, {"way": "length", "tokens_per_s": 12.0, **place}]
    )
    assert [row["gain"] for row in rows] == pytest.approx([0.0, 0.2])
    assert table("table1", rows).row_count == 2
    assert "m: 1, 2" in plot("table1", rows)
