"""Batches of embeddings in the steps of an engine that also generates: entry, vectors, failures, callers that leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from modelserver.engines.engine import EngineFacts
from modelserver.engines.synthetic import Poison, synthetic_facts, vectors
from modelserver.errors import EngineBroken, StepFailed
from modelserver.scheduler.queued_batch import Answer, Composition, MergeLimits, Outcome, QueuedBatch, StepReport
from modelserver.scheduler.step_queue import QueueBounds, StepQueue
from modelserver.service.batch import Batch
from modelserver.wings.both.embedding_batches import EmbeddingBatches
from modelserver.wings.both.generator import EMBED_AND_GENERATE
from modelserver.wings.both.synthetic import SyntheticMixedGenerator
from modelserver.wings.generation.outbox import Outbox
from modelserver.wings.generation.step_limits import StepCost, StepLimits, StepTokens
from modelserver.wings.generation.steps import Abort, GenerationStep, GenerationSteps, Start
from protos.modelserver.v1 import modelserver_pb2 as pb

DIMENSIONS, STEP_TOKENS, CAPACITY = 4, 40, 64
POISON = 666
UNAVAILABLE, INTERNAL = 14, 13


def facts() -> EngineFacts:
    made = synthetic_facts(
        dimensions=DIMENSIONS, max_input_tokens=60, vocabulary_size=1000, step_tokens=CAPACITY, step_queries=32
    )
    return replace(made, tasks=EMBED_AND_GENERATE, context_tokens=256, max_sequences=8, kv_tokens=4096)


class Broken(SyntheticMixedGenerator):
    """Does not recover."""

    def recover(self) -> None:
        raise EngineBroken("gone")


class Server:
    """Steps run one at a time, on this thread."""

    def __init__(self, engine: SyntheticMixedGenerator | None = None) -> None:
        self.now_s = 0.0
        self.engine = engine or SyntheticMixedGenerator(facts(), 0.01, 0.0, Poison(POISON, "error"), sleep=self._sleep)
        self.queue = StepQueue(lambda: self.now_s)
        self.outcomes: dict[str, Outcome] = {}
        self.reports: list[StepReport] = []
        self.failed: list[str] = []
        self.generation: list[GenerationStep] = []
        self.outbox = Outbox(lambda: None)
        bounds = QueueBounds(MergeLimits(CAPACITY, 32), 1000)
        self.batches = EmbeddingBatches(self.queue, lambda _: bounds, self.reports.append, self._failed)
        limits = StepLimits(StepTokens(StepCost(0.0, 0.0, 0.0), 1.0, STEP_TOKENS, 8), None)
        self.work = GenerationSteps(
            lambda _: limits,
            self.generation.append,
            lambda _: self.failed.append("generation"),
            lambda: self.now_s,
            self.batches,
        )
        self.work.open(self.engine)

    def _failed(self, composition: Composition, _: float) -> None:
        self.failed.append(composition)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def embed(
        self,
        name: str,
        *queries: Sequence[int],
        isolated: bool = False,
        budget: int = CAPACITY,
        deadline_s: float = 1e9,
        priority: pb.Priority = pb.PRIORITY_DEFAULT,
    ) -> QueuedBatch:
        ids = np.array([each for query in queries for each in query], np.int32)
        lengths = np.array([len(query) for query in queries], np.int32)
        batch = Batch(ids, lengths, len(queries), None, (), isolated, budget)
        queued = QueuedBatch(
            batch, lambda outcome: self.outcomes.__setitem__(name, outcome), self.now_s, deadline_s, priority
        )
        self.queue.put(queued)
        return queued

    def start(
        self,
        number: int,
        prompt: Sequence[int] = (1, 2, 3),
        tokens: int = 5,
        account: int = 0,
        priority: pb.Priority = pb.PRIORITY_DEFAULT,
    ) -> None:
        self.work.do(Start(self.outbox, number, prompt, pb.Sampling(max_tokens=tokens), account, priority))

    def step(self) -> None:
        if self.work.wait(self.engine):
            self.work.execute(self.engine)

    def finish(self) -> None:
        self.step()
        while self.engine.has_work or self.batches.has_work:
            self.step()

    def read(self) -> pb.GenerateStep:
        step = self.outbox.take()
        assert step is not None
        return step

    def answer(self, name: str) -> Answer:
        outcome = self.outcomes[name]
        assert isinstance(outcome, Answer)
        return outcome


def vector(query: Sequence[int]) -> list[float]:
    row: list[float] = vectors(np.array(query, np.int32), np.array([len(query)], np.int32), DIMENSIONS)[0].tolist()
    return row


def test_batches_and_generations_share_a_step_each_query_gets_its_vector() -> None:
    server = Server()
    server.start(1)
    server.embed("a", [1, 2], [3])
    server.embed("b", [4, 5, 6])
    server.step()
    assert server.answer("a").matrix.tolist() == [vector([1, 2]), vector([3])]
    assert server.answer("b").matrix.tolist() == [vector([4, 5, 6])]
    assert server.reports == [
        StepReport(tokens=6, queries=3, batches=2, composition=Composition.MIXED, duration_s=0.01, idle_before_s=0.0)
    ]
    assert server.answer("a").step.tokens == 9
    assert server.answer("a").step.embed_room_tokens == STEP_TOKENS - 3
    assert server.generation[0].prefill_tokens == 3
    step = server.read()
    assert len(step.token_ids) == 4
    assert (step.decoding_sequences, step.prompt_tokens, step.embedding_tokens) == (0, 3, 6)
    server.step()
    step = server.read()
    assert (step.decoding_sequences, step.prompt_tokens, step.embedding_tokens) == (1, 0, 0)


def test_a_batch_over_the_room_is_answered_once_its_last_vector_is_there() -> None:
    server = Server()
    server.start(1, tokens=20)
    server.step()
    server.embed("a", *([number] * 15 for number in range(1, 5)))
    server.step()
    assert "a" not in server.outcomes
    server.step()
    answer = server.answer("a")
    assert answer.matrix.tolist() == [vector([number] * 15) for number in range(1, 5)]
    assert answer.step.tokens == 60
    assert answer.step.duration_s == pytest.approx(0.02)
    assert answer.step.decoding == 1
    assert answer.step.embed_room_tokens == STEP_TOKENS - 1


def test_a_batch_that_goes_alone_has_its_own_step_and_generations_follow() -> None:
    server = Server()
    server.start(1, tokens=4)
    server.embed("before", [1])
    server.embed("alone", [2], isolated=True)
    server.embed("after", [3])
    server.step()
    assert list(server.outcomes) == ["before"]
    server.step()
    assert list(server.outcomes) == ["before", "alone"]
    assert server.answer("alone").step.composition is Composition.ISOLATED
    assert server.answer("alone").step.tokens == 1
    server.step()
    assert list(server.outcomes) == ["before", "alone", "after"]
    server.finish()
    step = server.read()
    assert len(step.token_ids) == 4 * 4
    assert [each.code for each in step.finished] == [0]


def test_after_a_failed_mixed_step_generations_end_and_batches_run_alone() -> None:
    server = Server()
    server.start(1)
    server.embed("good", [1, 2])
    server.embed("poison", [3, POISON])
    server.step()
    assert not server.outcomes
    assert [each.code for each in server.read().finished] == [UNAVAILABLE]
    server.start(2)
    server.finish()
    assert server.answer("good").matrix.tolist() == [vector([1, 2])]
    assert isinstance(server.outcomes["poison"], StepFailed)
    assert server.failed == ["generation", "isolated"]
    assert [each.code for each in server.read().finished] == [0]  # the poison failed while it ran


def test_a_poisoned_prompt_takes_no_batch_along() -> None:
    server = Server()
    server.embed("good", [1, 2])
    server.start(1, prompt=[POISON])
    server.step()
    assert [each.code for each in server.read().finished] == [UNAVAILABLE]
    server.finish()
    assert server.answer("good").matrix.tolist() == [vector([1, 2])]
    server.start(2, prompt=[POISON])
    server.step()
    assert [each.code for each in server.read().finished] == [INTERNAL]  # nothing else was in the step


def test_broken_vectors_of_a_mixed_step_fail_alone() -> None:
    server = Server()
    server.engine.poison = Poison(POISON, "nan")
    server.start(1, tokens=30)
    server.embed("half", [POISON], [1, 2])
    server.embed("good", [3])
    server.step()
    broken = server.answer("half").broken
    assert broken is not None
    assert broken.tolist() == [True, False]
    assert server.answer("good").broken is None
    assert server.work.failures == 0
    for number in range(8):
        server.embed(f"bad {number}", [POISON])
        server.step()
    assert server.work.failures == 8
    server.embed("better", [1])
    server.step()
    assert server.work.failures == 0
    assert all(each.code == 0 for each in server.read().finished)


def test_a_sequence_whose_scores_are_not_numbers_fails_alone() -> None:
    server = Server()
    server.engine.poison = Poison(POISON, "nan")
    server.start(1, prompt=[POISON])
    server.start(2, tokens=2)
    server.finish()
    assert {each.sequence: each.code for each in server.read().finished} == {1: INTERNAL, 2: 0}
    assert server.work.failures == 0
    for number in range(3, 11):
        server.start(number, prompt=[POISON])
        server.step()
    assert server.work.failures == 8


@pytest.mark.parametrize("generates", [False, True])
def test_poisoned_batches_alone_in_a_row_do_not_count_as_engine_failures(generates: bool) -> None:
    server = Server()
    if generates:
        server.start(1, tokens=30)
        server.step()
    for number in range(20):
        server.embed(f"poison {number}", [POISON], isolated=True)
    while len(server.outcomes) < 20:
        server.step()
        assert server.work.failures <= 1
    server.embed("merged", [POISON])
    server.embed("beside", [1])
    server.step()
    assert server.work.failures == 2


def test_between_two_batches_that_go_alone_generations_get_their_tokens() -> None:
    server = Server()
    server.start(1, tokens=30)
    server.step()
    for number in range(8):
        server.embed(str(number), [number], isolated=True)
    for _ in range(15):
        server.step()
    assert len(server.outcomes) == 8
    assert len(server.read().token_ids) == 4 * (1 + 7)


def test_what_a_broken_engine_held_is_tried_elsewhere() -> None:
    server = Server(Broken(facts(), 0.0, 0.0, Poison(POISON, "error"), sleep=lambda _: None))
    server.embed("a", [1])
    server.embed("b", [POISON])
    server.work.wait(server.engine)
    with pytest.raises(EngineBroken):
        server.work.execute(server.engine)
    assert all(isinstance(server.outcomes[name], EngineBroken) for name in "ab")


def test_the_queries_of_callers_that_left_or_are_late_leave_the_engine() -> None:
    server = Server()
    server.start(1, tokens=30)
    server.step()
    left = server.embed("left", [1] * 60)
    server.step()
    server.queue.withdraw(left)
    server.embed("late", [2] * 60, deadline_s=server.now_s + 0.005)
    server.embed("kept", [3] * 9)
    server.step()
    server.step()
    assert list(server.outcomes) == ["kept"]
    assert server.engine.load.embeddings == []


def test_the_time_of_steps_is_divided_among_all_that_they_computed() -> None:
    """Of two callers: prompts in parts, decoding, batches over several steps, an abort."""
    server = Server()
    server.engine.per_token_s = 0.001
    other = Outbox(lambda: None)
    server.start(1, prompt=range(1, 2 * STEP_TOKENS), tokens=4, account=7)
    server.work.do(Start(other, 1, (1, 2, 3), pb.Sampling(max_tokens=50), 9))
    for name in "abc":
        server.embed(name, *[[1, 2, 3, 4]] * 6)
    for _ in range(6):
        server.step()
    server.work.do(Abort(other, 1))
    server.finish()
    parts = [server.answer(name).engine_s for name in "abc"]
    seconds = account_s(server.outbox.take(), other.take())
    assert seconds.keys() == {7, 9}
    assert sum(parts) + sum(seconds.values()) == pytest.approx(server.now_s)
    assert min(*parts, *seconds.values()) > 0.0


def test_each_token_of_a_step_costs_the_same() -> None:
    server = Server()
    server.start(1, prompt=(1, 2, 3), account=4)
    server.embed("a", [1, 2], [3])
    server.embed("b", [4])
    server.step()
    assert server.answer("a").engine_s == pytest.approx(0.01 * 3 / 7)
    assert server.answer("b").engine_s == pytest.approx(0.01 * 1 / 7)
    assert account_s(server.read()) == {4: pytest.approx(0.01 * 3 / 7)}
    server.embed("c", [4, 5, 6])
    server.step()
    assert server.answer("c").engine_s == pytest.approx(0.01 * 3 / 4)
    assert account_s(server.read()) == {4: pytest.approx(0.01 * 1 / 4)}


def test_a_question_enters_before_the_rest_of_a_batch_that_has_begun() -> None:
    server = Server()
    server.embed("bulk", *[[number] * 20 for number in range(1, 9)], priority=pb.PRIORITY_BACKGROUND)
    server.step()
    server.embed("question", [1, 2, 3], priority=pb.PRIORITY_INTERACTIVE)
    server.step()
    assert list(server.outcomes) == ["question"]
    server.finish()
    assert len(server.answer("bulk").matrix) == 8


def test_nothing_enters_before_a_question_that_does_not_fit_the_step() -> None:
    server = Server()
    server.embed("bulk", *[[number] * 20 for number in range(1, 9)], priority=pb.PRIORITY_BACKGROUND)
    server.step()
    long = [1] * STEP_TOKENS
    server.embed("question", [2], long, priority=pb.PRIORITY_INTERACTIVE)
    server.step()
    server.step()
    assert list(server.outcomes) == ["question"]


def test_a_waiting_prompt_goes_behind_more_urgent_ones_of_half_a_minute() -> None:
    server = Server()
    for number in range(1, 9):
        server.start(number, tokens=3 if number == 8 else 50)
    server.step()
    server.start(9, tokens=1, priority=pb.PRIORITY_BACKGROUND)
    server.start(10, tokens=1)
    server.start(11, tokens=1, priority=pb.PRIORITY_INTERACTIVE)
    server.finish()
    assert [each.sequence for each in server.read().finished][:4] == [8, 11, 10, 9]


def account_s(*steps: pb.GenerateStep | None) -> dict[int, float]:
    """Seconds by account."""
    found: dict[int, float] = {}
    for step in steps:
        assert step is not None
        accounts, seconds = (
            np.frombuffer(step.accounts, "<u4").tolist(),
            np.frombuffer(step.account_seconds, "<f8").tolist(),
        )
        found |= dict(zip(accounts, seconds, strict=True))
    return found
