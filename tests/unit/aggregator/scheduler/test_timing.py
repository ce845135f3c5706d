"""What a replica learns from replies: its speed against its curve, when to send, and what to promise."""

from __future__ import annotations

import math
import random

import pytest

from aggregator.scheduler.dispatcher import Dispatcher, DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.rates import LightLead, LiveScale, ReplyDelay
from aggregator.scheduler.replica import Replica
from tests.support.simulated_servers import Server, Simulation, ignore

SEEDS = range(50)
NOISE = 0.10


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_speed_is_learnt_within_thirty_noisy_steps(factor: float) -> None:
    for seed in SEEDS:
        noise = random.Random(seed)
        scale = LiveScale()
        for _ in range(200):
            scale.observe(0.010 * math.exp(NOISE * noise.gauss(0.0, 1.0)), 0.010)
        for _ in range(30):
            scale.observe(factor * 0.010 * math.exp(NOISE * noise.gauss(0.0, 1.0)), 0.010)
        assert scale.value == pytest.approx(factor, rel=0.15)


@pytest.mark.parametrize("clip", [0.7, 0.1])
def test_a_stray_step_counts_for_no_more_than_the_clip_and_less_and_less(clip: float) -> None:
    scale = LiveScale() if clip == 0.7 else LiveScale(weight=0.1, clip=clip)
    scale.observe(100.0, 1.0)
    assert scale.value == pytest.approx(math.exp(clip / 2))
    for _ in range(30):
        scale.observe(scale.value, 1.0)
    before = scale.value
    scale.observe(1e-6, 1.0)
    assert scale.value == pytest.approx(before * math.exp(-0.1 * clip))


def test_the_first_steps_weigh_as_in_a_mean_that_begins_with_one_vote() -> None:
    scale = LiveScale(weight=0.1, clip=9.0)
    for count in range(1, 9):
        scale.observe(2.0, 1.0)
        assert scale.value == pytest.approx(2.0 ** (count / (count + 1)))


@pytest.mark.parametrize("times", [(0.0, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.inf), (math.nan, 1.0)])
def test_a_time_of_none_measured_or_fitted_teaches_nothing(times: tuple[float, float]) -> None:
    scale = LiveScale()
    scale.observe(*times)
    assert scale.value == 1.0
    scale.observe(2.0, 1.0)
    assert scale.value == pytest.approx(math.sqrt(2.0))


START_S = 100.0
POLICY = DispatchPolicy(queue=QueuePolicy(coalesce=False))


def test_a_reply_delay_is_mean_and_two_deviations_despite_a_stray_reply() -> None:
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


def test_the_light_lead_grows_evenly_up_to_that_of_full_batches() -> None:
    lead = LightLead(0.001, 0.0005)
    assert [lead.up_to(0.003, fill) for fill in (0.0, 0.25, 0.5)] == pytest.approx([0.001, 0.0015, 0.002])
    assert lead.up_to(0.003, 1.0) == lead.up_to(0.003, 7.5) == lead.up_to(0.003, math.inf) == 0.003


def test_a_full_batch_is_sent_no_later_than_a_light_one() -> None:
    lead = LightLead(0.004, 0.0005)
    assert [lead.up_to(0.001, fill) for fill in (0.0, 0.5, 1.0)] == [0.004] * 3


def test_the_light_lead_is_the_mean_of_what_is_right() -> None:
    noise, lead = random.Random(1), LightLead(0.010, 0.0005)
    for _ in range(500):
        lead.observe(noise.gauss(0.002, 0.0005))
    assert lead.value_s == pytest.approx(0.002, abs=0.0003)


def test_an_outlier_moves_the_light_lead_by_a_twentieth_of_itself() -> None:
    lead = LightLead(0.004, 0.0005)
    lead.observe(math.inf)
    assert lead.value_s == pytest.approx(0.0042)
    lead.observe(-math.inf)
    assert lead.value_s == pytest.approx(0.95 * 0.0042)


def test_the_light_lead_never_falls_below_its_least() -> None:
    lead = LightLead(0.004, 0.0005)
    for _ in range(100):
        lead.observe(-1.0)
    assert lead.value_s == 0.0005


@pytest.mark.slow
def test_in_an_overload_what_is_promised_allows_for_the_way_back() -> None:
    """Queries of 12 tokens, more than one server 2 ms away can answer; a full step takes 10 ms."""
    server, within_s = Server("a"), 0.060
    dispatcher = Dispatcher("m", POLICY)
    dispatcher.replicas["a"] = Replica("a", server.measured, 600, POLICY.replica)
    sim = Simulation(dispatcher, [server], network_s=0.002)
    times, now_s = random.Random(2), START_S
    while now_s < START_S + 3.0:
        now_s += times.expovariate(6500.0)
        sim.at(now_s, lambda: ignore(sim.put(12, within_s=within_s)))
    sim.run()
    in_time = sum(latency_s <= within_s for latency_s in sim.latency_s.values())
    assert in_time > 0.98 * len(sim.latency_s)


def test_an_early_reply_counts_for_a_step_at_most_or_without_one_for_none() -> None:
    early, more = ReplyDelay(gain=1.0), ReplyDelay(gain=1.0)
    early.observe(-0.010, 0.010)
    more.observe(-0.100, 0.010)
    assert early.value == more.value
    none = ReplyDelay(gain=1.0)
    none.observe(0.010, 0.0)
    assert none.value == 0.0
