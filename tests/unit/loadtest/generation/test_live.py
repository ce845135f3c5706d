"""A driver of a real engine, with one whose steps take no time but the clock's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from loadtest.lab.generation.live.drive import Fixed, Measured, Static, drive
from loadtest.lab.generation.work import Work, at_once
from modelserver.engines.engine import EngineLoad, NewTokens, StepLoad
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
    def load(self) -> EngineLoad:
        return EngineLoad(sum(not prompt for prompt, _ in list(self.left.values())[: self.sequences]))

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
        load = StepLoad(sum(prompt for _, (prompt, _) in running), self.load.decoding)
        for name, left in running:
            left[:] = [0, left[1] - 1]
            if not left[1]:
                del self.left[name]
        return [NewTokens(name, [1], finished=not left[1], length=False) for name, left in running], load


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
