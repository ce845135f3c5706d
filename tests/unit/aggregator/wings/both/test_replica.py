"""A server of both tasks: embeddings fit what decoding leaves; a suspect of one task harms no input of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import pytest

from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy
from aggregator.scheduler.replica import Replica, StepReport
from aggregator.scheduler.work_item import Priority, Query
from aggregator.wings.both.replica import MixedReplica
from aggregator.wings.generation.replica import GeneratingReplica
from tests.support.queries import packed
from tests.support.replicas import CURVE, POLICY, HeardController

PER_SEQUENCE_S = 0.001


def mixed(name: str = "a", budget: int = 100, capacity: int = 400) -> MixedReplica:
    return MixedReplica(name, CURVE, budget, POLICY, capacity=capacity, per_sequence_s=PER_SEQUENCE_S)


def generating(name: str = "a") -> GeneratingReplica:
    return GeneratingReplica(name, CURVE, 100, POLICY, kv_tokens=10_000, max_sequences=64)


def run_batch(replica: Replica, tokens: int, *, at_s: float, decoding: int = 0, room: int | None = 100) -> None:
    """Send and answer a batch whose step took the curve's time and that of the decoding sequences."""
    duration_s = CURVE.time_s(tokens) + PER_SEQUENCE_S * decoding
    replica.sent(f"b{at_s}", tokens, at_s)
    report = StepReport(tokens, duration_s, 0, 0.0, 0.0, decoding, room)
    replica.ended(f"b{at_s}", at_s + duration_s, report)


def test_a_batch_holds_what_decoding_leaves_of_a_step_or_one_token() -> None:
    server = mixed()
    assert (server.token_budget, server.largest) == (100, 400)
    server.observe_room(30, decoding=60)
    assert (server.token_budget, server.largest) == (30, 30)
    assert server.batch_tokens(1000, backlog_tokens=1000, within_s=9.0) == 30
    server.observe_room(250, decoding=10)
    assert (server.token_budget, server.largest) == (100, 250)
    server.observe_room(0, decoding=100)
    assert (server.token_budget, server.largest) == (1, 1)
    server.observe_room(None, decoding=0)
    assert (server.token_budget, server.largest) == (100, 400)


def test_the_answer_of_a_batch_reports_the_room() -> None:
    server = mixed()
    run_batch(server, 50, at_s=1.0, decoding=20, room=40)
    assert server.token_budget == 40
    assert server.step_time_s(40) == pytest.approx(CURVE.time_s(40) + 20 * PER_SEQUENCE_S)


@dataclass(frozen=True)
class Load:
    """A server's load after a step."""

    embed_room_tokens: int | None
    running: int


def test_the_newer_of_a_steps_load_and_an_answer_says_the_room() -> None:
    steps: list[Load | None] = [None]
    server = MixedReplica("a", CURVE, 100, POLICY, capacity=400, load=lambda: steps[-1])
    budgets: list[int] = []
    for load in (None, Load(None, 3), Load(30, 3)):
        steps.append(load)
        server.due_s(1.0)
        budgets.append(server.token_budget)
    run_batch(server, 30, at_s=2.0, decoding=3, room=70)
    server.due_s(3.0)
    budgets.append(server.token_budget)
    steps.append(Load(50, 3))
    server.due_s(4.0)
    assert [*budgets, server.token_budget] == [100, 100, 30, 70, 50]


def test_its_controller_hears_of_the_whole_step_and_of_the_batchs_budget() -> None:
    controller = HeardController(100)
    server = MixedReplica("a", CURVE, 100, POLICY, controller)
    server.sent("1", 50, 5.0, 300)
    server.ended("1", 5.064, StepReport(600, 0.064, 0, 0.0, 0.0))
    assert controller.heard == [(600, 0.064, 300)]


def test_decoding_beside_makes_steps_longer_and_the_server_no_slower() -> None:
    server, alone = mixed(), mixed()
    for step in range(50):
        run_batch(server, 80, at_s=float(step), decoding=64, room=None)
        run_batch(alone, 80, at_s=float(step), room=None)
    assert server.step_time_s(80) == pytest.approx(alone.step_time_s(80) + 64 * PER_SEQUENCE_S)
    server.observe_room(10, decoding=64)
    assert server.pod_step() == pytest.approx(alone.pod_step())
    free = MixedReplica("a", CURVE, 100, POLICY)
    free.observe_room(None, decoding=64)
    assert free.step_time_s(80) == CURVE.time_s(80)


def test_a_batch_of_several_steps_or_awaiting_its_own_is_not_timed_out() -> None:
    server = mixed()
    run_batch(server, 50, at_s=1.0)
    assert server.sent("next", 50, 2.0) >= POLICY.first_timeout_s


def test_all_batches_that_wait_for_the_next_step_are_staged() -> None:
    server = mixed(budget=100)
    server.observe_room(100, decoding=10)
    states = [server.state]
    for number in range(4):
        server.sent(str(number), 10, 5.0)
        states.append(server.state)
    assert states == ["idle", "running", "staged", "staged", "staged"]


def test_while_sequences_decode_what_comes_joins_the_next_step_until_full() -> None:
    server = mixed(budget=100)
    server.observe_room(100, decoding=10)
    part_s = CURVE.time_s(30) / 4 + 10 * PER_SEQUENCE_S / 4
    server.sent("1", 30, 5.0)
    assert server.due_s(5.0) == pytest.approx(5.0 + part_s)
    assert server.free_s(5.001) == 5.001
    server.hold_until(5.002)
    assert server.free_s(5.001) == 5.002
    server.sent("2", 30, 5.005)
    server.sent("3", 39, 5.010)
    assert server.due_s(5.010) < inf
    server.sent("4", 1, 5.015)
    assert server.due_s(5.015) == inf
    assert server.free_s(5.015) > 5.015 + CURVE.time_s(99)


@pytest.mark.parametrize(
    ("decoding", "tokens", "joins"), [(0, 30, False), (1, 30, True), (1, 1, True), (1, 99, True), (1, 100, False)]
)
def test_a_batch_joins_only_a_decoding_step_that_has_room(decoding: int, tokens: int, *, joins: bool) -> None:
    server = mixed()
    server.observe_room(100, decoding)
    server.sent("1", tokens, 5.0)
    assert (server.free_s(5.001) == 5.001) is joins


def test_a_server_that_hangs_while_sequences_decode_does_not_look_free() -> None:
    server = mixed(budget=100)
    server.observe_room(100, decoding=10)
    server.sent("1", 30, 5.0)
    assert server.free_s(6.0) > 6.9


def test_a_suspect_keeps_other_batches_off_while_sequences_decode() -> None:
    server = mixed(budget=100)
    server.observe_room(100, decoding=10)
    server.sent("1", 30, 5.0)
    server.exclusive = True
    assert server.due_s(6.0) == inf


def test_prompts_in_its_steps_do_not_count_as_other_aggregators() -> None:
    server = mixed(budget=100)
    for step in range(50):
        server.sent(str(step), 30, float(step))
        server.ended(str(step), step + 0.02, StepReport(90, 0.02, 0, 0.0, 0.0, 5, 100))
    assert server.batch_tokens(80) == 100


class Pool:
    """Both queues of one server, or of two."""

    def __init__(self, *names: str) -> None:
        self.embeds, self.generates = (Dispatcher(name, DispatchPolicy()) for name in ("e", "g"))
        self.now_s = 100.0
        for name in names:
            server, prompts = mixed(name), generating(name)
            server.sibling, prompts.sibling = prompts, server
            self.embeds.replicas[name], self.generates.replicas[name] = server, prompts

    def put(self, dispatcher: Dispatcher, *names: int) -> None:
        for name in names:
            query = Query(object(), 0, Priority.DEFAULT, "", self.now_s, float("inf"))
            dispatcher.queue.put(query, packed(name), 1)

    def due(self, dispatcher: Dispatcher) -> Sequence[Batch]:
        return dispatcher.due(self.now_s, max_items=8).batches

    def fail(self, dispatcher: Dispatcher, batch: Batch) -> Sequence[bytes]:
        self.now_s += 1.0
        return [item.token_ids for item in dispatcher.failed(batch, self.now_s, 0.0)]

    def fail_isolated(self, dispatcher: Dispatcher, batch: Batch) -> Sequence[bytes]:
        """Fail a suspect whenever it is sent, and let each control succeed, until it is proven to be poison."""
        while not (poison := self.fail(dispatcher, batch)):
            while (batch := self.due(dispatcher)[0]).control:
                self.end(dispatcher, batch)
        return poison

    def end(self, dispatcher: Dispatcher, batch: Batch) -> None:
        self.now_s += 0.01
        dispatcher.done(batch, StepReport(batch.token_count, 0.01, 0, 0.0, 0.0), self.now_s)

    def make_suspect(self, dispatcher: Dispatcher, *names: int) -> None:
        """Let inputs fail twice."""
        self.put(dispatcher, *names)
        for _ in range(2):
            (batch,) = self.due(dispatcher)
            assert not batch.isolated
            self.fail(dispatcher, batch)


BOTH = pytest.mark.parametrize("embeddings", [True, False], ids=["an embedding", "a prompt"])


def sides(pool: Pool, *, embeddings: bool) -> tuple[Dispatcher, Dispatcher]:
    return (pool.embeds, pool.generates) if embeddings else (pool.generates, pool.embeds)


@BOTH
def test_a_suspect_waits_for_the_other_tasks_batches_and_keeps_off_more(
    embeddings: bool,
) -> None:
    pool = Pool("a")
    suspected, other = sides(pool, embeddings=embeddings)
    pool.put(other, 7)
    (running,) = pool.due(other)
    pool.make_suspect(suspected, 1)
    assert not pool.due(suspected)
    pool.put(other, 8)
    assert not pool.due(other)
    pool.end(other, running)
    assert not pool.due(other)
    (alone,) = pool.due(suspected)
    assert alone.isolated
    assert not pool.due(other)
    assert pool.fail_isolated(suspected, alone) == [packed(1)]
    assert [item.token_ids for item in pool.due(other)[0].items] == [packed(8)]


@BOTH
def test_a_poison_of_one_task_is_quarantined_for_that_task_only(embeddings: bool) -> None:
    pool = Pool("a")
    suspected, other = sides(pool, embeddings=embeddings)
    pool.make_suspect(suspected, 1)
    (alone,) = pool.due(suspected)
    pool.fail_isolated(suspected, alone)
    assert suspected.retries.is_quarantined(packed(1), 0.0)
    assert not other.retries.is_quarantined(packed(1), 0.0)


def test_suspects_of_both_tasks_run_one_after_the_other() -> None:
    pool = Pool("a")
    pool.make_suspect(pool.embeds, 1)
    pool.make_suspect(pool.generates, 2)
    (first,) = pool.due(pool.embeds)
    assert not pool.due(pool.generates)
    pool.end(pool.embeds, first)
    (second,) = pool.due(pool.generates)
    assert second.isolated
    pool.put(pool.embeds, 3)
    assert not pool.due(pool.embeds)
    pool.end(pool.generates, second)
    assert pool.due(pool.embeds)


def test_a_suspect_that_expires_keeps_nothing_off() -> None:
    pool = Pool("a")
    pool.put(pool.generates, 7)
    (running,) = pool.due(pool.generates)
    query = Query(object(), 0, Priority.DEFAULT, "", pool.now_s, pool.now_s + 5.0)
    pool.embeds.queue.put(query, packed(1), 1)
    for _ in range(2):
        (batch,) = pool.due(pool.embeds)
        pool.fail(pool.embeds, batch)
    assert not pool.due(pool.embeds)
    pool.end(pool.generates, running)
    pool.now_s += 10.0
    assert not pool.due(pool.embeds)
    pool.put(pool.generates, 8)
    assert pool.due(pool.generates)


@BOTH
def test_while_a_suspect_runs_on_one_server_others_take_both_tasks(embeddings: bool) -> None:
    pool = Pool("a", "b")
    suspected, other = sides(pool, embeddings=embeddings)
    pool.make_suspect(suspected, 1)
    (alone,) = pool.due(suspected)
    pool.put(other, 7)
    (batch,) = pool.due(other)
    assert batch.replica.name != alone.replica.name
