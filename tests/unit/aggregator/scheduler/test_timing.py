"""What a replica learns from replies about when to send and what to promise."""

from __future__ import annotations

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from aggregator.scheduler.dispatcher import Dispatcher, DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import LightLead, Replica, ReplyDelay
from tests.fakes.simulation import Server, Simulation

START_S = 100.0
POLICY = DispatchPolicy(queue=QueuePolicy(coalesce=False))


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0)), max_size=50))
def test_a_light_lead_never_falls_below_its_least(seen: list[tuple[float, float, float]]) -> None:
    lead = LightLead(0.004, 0.0005)
    for lead_s, idle_s, staged_s in seen:
        lead.observe(lead_s, idle_s, staged_s)
        assert lead.value_s >= 0.0005


def test_it_completes_where_the_engine_is_idle_as_long_as_batches_lie_staged() -> None:
    noise = random.Random(1)
    lead = LightLead(0.010, 0.0005)
    for _ in range(500):
        early_s = lead.value_s - 0.002 + noise.gauss(0.0, 0.0005)  # the way there takes 2 ms
        lead.observe(lead.value_s, max(0.0, -early_s), max(0.0, early_s))
    assert lead.value_s == pytest.approx(0.002, abs=0.0004)


def test_it_learns_from_batches_that_went_by_another_lead_too() -> None:
    lead = LightLead(0.004, 0.0005)
    for _ in range(200):
        lead.observe(0.003, 0.0, 0.002)  # sent 3 ms ahead, 2 ms early
    assert lead.value_s == pytest.approx(0.001, abs=0.0001)


def test_a_reply_delay_is_the_mean_and_twice_the_deviation_and_a_stray_reply_moves_it_little() -> None:
    delay = ReplyDelay()
    assert delay.value == 0.0
    for number in range(500):
        delay.observe(0.003 + (0.001 if number % 2 else -0.001), 0.020)
    assert delay.value == pytest.approx(0.005 / 0.020, abs=0.02)
    delay.observe(60.0, 0.020)
    assert delay.value < 0.5
    for _ in range(500):
        delay.observe(-0.010, 0.020)
    assert delay.value == 0.0
    delay.observe(1.0, 0.0)  # a step that took no time says nothing
    assert delay.value == 0.0


class AlwaysFull(Replica):
    """Stages as early for a queue that fits one batch as for one that does not."""

    @override
    def due_s(self, now_s: float, queued_tokens: float = float("inf")) -> float:
        return super().due_s(now_s)


class Hopeful(Replica):
    """Promises an answer at the very end of its step."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.reply_delay = ReplyDelay(gain=0.0)


def served(replica: type[Replica], rate: float, within_s: float, seconds: float = 10.0) -> Simulation:
    """Queries of 12 tokens at a rate, for so long, on one server 2 ms away; a full step takes 10 ms."""
    server = Server("a")
    dispatcher = Dispatcher("m", POLICY)
    dispatcher.replicas["a"] = replica("a", server.measured, 600, POLICY.replica)
    sim = Simulation(dispatcher, [server], network_s=0.002)
    times, now_s = random.Random(2), START_S
    while now_s < START_S + seconds:
        now_s += times.expovariate(rate)
        sim.at(now_s, lambda: put(sim, within_s))
    sim.run()
    return sim


def put(sim: Simulation, within_s: float) -> None:
    sim.put(12, within_s=within_s)


@pytest.mark.slow
def test_while_all_that_waits_fits_one_batch_staging_it_later_answers_sooner() -> None:
    later, early = (
        mean(served(replica, 1500.0, 1.0, seconds=5.0).latency_s.values()) for replica in (Replica, AlwaysFull)
    )
    assert later < early - 0.001


@pytest.mark.slow
def test_in_an_overload_promises_that_leave_out_the_way_back_are_broken() -> None:
    in_time: dict[type[Replica], int] = {}
    for replica in (Replica, Hopeful):
        sim = served(replica, 6500.0, 0.060, seconds=3.0)
        in_time[replica] = sum(latency_s <= 0.060 for latency_s in sim.latency_s.values())
    assert in_time[Replica] > 1.03 * in_time[Hopeful]


def test_an_early_reply_counts_for_a_step_at_the_most_and_one_without_a_step_for_nothing() -> None:
    early, more = ReplyDelay(gain=1.0), ReplyDelay(gain=1.0)
    early.observe(-0.010, 0.010)
    more.observe(-0.100, 0.010)
    assert early.value == more.value
    none = ReplyDelay(gain=1.0)
    none.observe(0.010, 0.0)
    assert none.value == 0.0
