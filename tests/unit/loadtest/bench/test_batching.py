"""Batches by count and time close when their rule says, and every rule gets the same load."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from aggregator.scheduler.dispatcher import DispatchPolicy
from aggregator.scheduler.replica_choice import SendReason
from loadtest.bench.callers import Turn
from loadtest.bench.calls.batching import Batched, figures, inputs_of, loads, rules
from loadtest.bench.processor import Used
from loadtest.bench.programs.plain_aggregator import PlainDispatcher
from loadtest.bench.turns import Medians
from loadtest.kit.prometheus import BatchFigures
from tests.support.queries import Filler
from tests.support.replicas import replica

TURN = Turn(100.0, np.array([0.1, 0.3]), 5.0, {"callers": [Used(0.5, 0.4)]})


class Pool:
    """A dispatcher that closes a batch by four queries, or by 10 ms, before one server."""

    def __init__(self, queries: int = 4) -> None:
        self.dispatcher = PlainDispatcher("m", DispatchPolicy())
        self.dispatcher.queries, self.dispatcher.wait_s = queries, 0.01
        self.dispatcher.replicas["a"] = replica("a", token_budget=100)
        self.put = Filler(self.dispatcher.queue)

    def sent(self, now_s: float, *, draining: bool = False) -> tuple[Sequence[tuple[int, SendReason]], float]:
        """Queries and reason of each batch that is sent now, and when to ask again."""
        due = self.dispatcher.due(now_s, max_items=1000, draining=draining)
        return [(len(batch.items), batch.reason) for batch in due.batches], due.wake_s


def test_a_batch_by_count_is_closed_by_its_size_or_after_its_wait() -> None:
    pool = Pool()
    for _ in range(7):
        pool.put(10, at_s=1.0)
    assert pool.sent(1.0) == ([(4, SendReason.FULL)], 1.01)
    assert pool.sent(1.009) == ([], 1.01)
    assert pool.sent(1.01) == ([(3, SendReason.AGED)], inf)


def test_a_batch_by_time_waits_however_many_come() -> None:
    pool = Pool(queries=0)
    for _ in range(50):
        pool.put(2, at_s=1.0)
    assert pool.sent(1.009) == ([], 1.01)
    assert pool.sent(1.01) == ([(50, SendReason.AGED)], inf)


def test_a_server_has_two_batches_at_most_and_a_drain_does_not_wait() -> None:
    pool = Pool()
    for _ in range(11):
        pool.put(10, at_s=1.0)
    assert pool.sent(1.0) == ([(4, SendReason.FULL)] * 2, inf)
    pool = Pool()
    pool.put(10, at_s=1.0)
    assert pool.sent(1.0, draining=True) == ([(1, SendReason.DRAIN)], inf)


def test_counts_fill_a_step_with_the_inputs_of_each_load() -> None:
    found = rules(3000, (30.0, 15.0))
    assert found["tokens"] == "aggregator"
    told = [each.split()[1:] for each in list(found.values())[1:4]]
    assert told == [["100", "0.005"], ["200", "0.005"], ["0", "0.005"]]
    assert list(found)[1:4] == ["count100_5ms", "count200_5ms", "time_5ms"]


@pytest.mark.parametrize("name", ["questions", "mixed"])
def test_the_trace_arrives_at_a_share_of_what_the_engine_can_answer(name: str) -> None:
    found = loads(name, 500.0, 0.25)["trace"]
    assert len(found.due_s) == len(found.inputs) == 600  # in 2 s
    assert list(found.due_s) == sorted(found.due_s)
    assert found.due_s[-1] == pytest.approx(2.0, rel=0.02)
    assert np.std(np.diff(found.due_s)) > 1.5 * np.mean(np.diff(found.due_s))  # burstier than a Poisson process
    long = [len(text.split()) > 50 for text in inputs_of(name, 600)]
    assert sum(long) == (60 if name == "mixed" else 0)


def test_figures_say_how_many_answers_were_late_and_how_full_batches_were() -> None:
    turns = [Batched(TURN, BatchFigures(4.0, 800.0, 2.0), 12.0, 400, 0.2)] * 3
    found = {figure.figure: figure.value for figure in figures({"mixed_trace_tokens": turns}, Medians("b", 3, ""))}
    assert found["mixed_trace_tokens_tokens"] == 1200.0
    assert found["mixed_trace_tokens_late"] == 0.5
    assert found["mixed_trace_tokens_fill"] == 0.5
    assert found["mixed_trace_tokens_callers_thread"] == 0.4
