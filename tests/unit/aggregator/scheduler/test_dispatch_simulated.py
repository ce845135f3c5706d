"""Queue, packing, replicas and retries together, over servers and networks in virtual time."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import Replica
from aggregator.scheduler.work_item import Priority
from tests.support.simulated_servers import CURVE, Server, Simulation, ignore

POLICY = DispatchPolicy(queue=QueuePolicy(coalesce=False))
START_S = 100.0


def pool(*servers: Server, network_s: float = 0.001, seed: int = 1, timer_s: float = 0.0) -> Simulation:
    dispatcher = Dispatcher("m", POLICY)
    for server in servers:
        dispatcher.replicas[server.name] = Replica(server.name, server.measured, 600, POLICY.replica)
    return Simulation(dispatcher, servers, seed=seed, network_s=network_s, timer_s=timer_s)


def flood(sim: Simulation, until_s: float, priority: Priority = Priority.BACKGROUND) -> None:
    """Keep several batches waiting."""
    sizes = random.Random(7)

    def top_up() -> None:
        while sim.dispatcher.queue.tokens < 4000:
            sim.put(sizes.randint(20, 120), priority)
        if sim.now_s < until_s:
            sim.at(sim.now_s + 0.004, top_up)

    sim.at(sim.now_s, top_up)


def idle_share(server: Server, from_s: float, until_s: float) -> float:
    """Idle time between batches over all time, once the replica is warm."""
    return sum(idle_s for at_s, idle_s in server.idle_s.items() if from_s <= at_s < until_s) / (until_s - from_s)


@pytest.mark.slow
@pytest.mark.parametrize("network_s", [0.0002, 0.001, 0.002])
def test_in_an_overload_no_engine_idles_for_one_percent_of_the_time(network_s: float) -> None:
    servers = [Server("a"), Server("b")]
    sim = pool(*servers, network_s=network_s)
    flood(sim, START_S + 6.0)
    sim.run(START_S + 6.0)
    for server in servers:
        assert idle_share(server, START_S + 2.0, START_S + 6.0) < 0.01


@pytest.mark.slow
def test_late_timers_do_not_keep_the_lead_from_following_a_slow_network() -> None:
    idle: list[float] = []
    for timer_s in (0.0, 0.0003):  # an event loop wakes up late, and never at the very time
        server = Server("a")
        sim = pool(server, network_s=0.006, timer_s=timer_s)
        flood(sim, START_S + 4.0)
        sim.run(START_S + 4.0)
        idle.append(idle_share(server, START_S + 2.0, START_S + 4.0))
    assert idle[1] < idle[0] + 0.03  # a third of the time with a lead that stays as it begins


@pytest.mark.slow
def test_in_an_overload_batches_are_full_and_sealed_last() -> None:
    server = Server("a")
    sim = pool(server)
    flood(sim, START_S + 5.0)
    sim.run(START_S + 5.0)
    warm = [batch for at_s, batch in server.sent if at_s > START_S + 2.0]
    assert mean(batch.token_count for batch in warm) >= 0.95 * 600
    assert sim.dispatcher.replicas["a"].lead_s < 0.006  # of steps of 10 ms: the network's time and a margin


@pytest.mark.slow
@pytest.mark.parametrize("first_lead_s", [0.0005, 0.010])
def test_the_lead_converges_from_far_off(first_lead_s: float) -> None:
    sim = pool(Server("a"))
    replica = sim.dispatcher.replicas["a"]
    replica.lead_s = first_lead_s
    flood(sim, START_S + 5.0)
    leads_s: list[float] = []
    for tenth in range(20, 50):
        sim.run(START_S + 0.1 * tenth)
        leads_s.append(replica.lead_s)
    assert min(leads_s) > 0.002
    assert max(leads_s) < 0.008


STEP_S = 5.0 * CURVE.time_s(600)


@pytest.mark.slow
def test_an_interactive_call_in_a_flood_waits_for_the_running_step_only() -> None:
    sim = pool(Server("a", slowness=5.0))
    flood(sim, START_S + 20.0)
    times, calls = random.Random(3), list[int]()
    for _ in range(200):
        sim.at(START_S + times.uniform(1.0, 19.0), lambda: calls.append(sim.put(10, Priority.INTERACTIVE)))
    sim.run(START_S + 20.0)
    # the rest of the running step, its own, and the lead: not a batch that was staged long before it came
    assert mean(sim.latency_s[call] for call in calls) < 1.7 * STEP_S


def test_a_replica_ten_times_slower_gets_no_query_another_finishes_sooner() -> None:
    fast, slow = Server("fast"), Server("slow", slowness=10.0)
    sim = pool(slow, fast)
    times = random.Random(3)
    for _ in range(300):
        sim.at(START_S + times.uniform(0.0, 6.0), lambda: ignore(sim.put(10)))
    sim.run()
    assert not slow.sent
    assert max(sim.latency_s.values()) < 0.035


@pytest.mark.slow
def test_while_one_replica_hangs_the_other_serves_everybody() -> None:
    healthy, hung = Server("healthy"), Server("hung")
    sim = pool(hung, healthy)
    sim.at(START_S + 1.0, lambda: setattr(hung, "hangs", True))
    flood(sim, START_S + 3.0)
    sim.run()
    assert idle_share(healthy, START_S + 1.0, START_S + 3.0) < 0.01
    assert len(sim.latency_s) == sim.asked


def test_an_idle_replica_waits_no_longer_than_promised_for_one_that_hangs() -> None:
    fast, slow = Server("fast"), Server("slow", slowness=10.0)
    sim = pool(slow, fast)
    sim.at(START_S, lambda: ignore(sim.put(10)))
    sim.at(START_S + 0.1, lambda: setattr(fast, "hangs", True))
    for time_s in (0.11, 0.12, 0.13):  # one runs, one is staged, one is promised its turn after both
        sim.at(START_S + time_s, lambda: ignore(sim.put(10)))
    sim.run()
    promised_s = START_S + 0.11 + 2 * CURVE.time_s(10)
    assert slow.sent[0][0] == pytest.approx(promised_s, abs=1e-3)
    assert len(sim.latency_s) == sim.asked


def test_a_server_once_a_hundred_times_slower_is_retried_on_old_evidence() -> None:
    server = Server("a", slowness=100.0)
    sim = pool(server)
    sim.dispatcher.replicas["a"] = Replica("a", CURVE, 600, POLICY.replica)
    for second in range(60):
        sim.at(START_S + 1.1 * second, lambda: ignore(sim.put(10)))
    sim.run(START_S + 66.0)
    healed_s = sim.now_s
    server.slowness = 1.0
    for number in range(800):
        sim.at(healed_s + 0.01 * number, lambda: ignore(sim.put(10, within_s=0.1)))
    sim.run()
    sent_s = [at_s - healed_s for at_s, _ in server.sent if at_s > healed_s]
    assert sent_s[0] < 5.1  # one goes through, and shows that the replica is well
    assert len(sent_s) > 200


@pytest.mark.slow
@pytest.mark.parametrize("survives", [False, True])
def test_a_query_that_kills_engines_kills_at_most_three_pods_in_overload(*, survives: bool) -> None:
    """Also where it fails its batch and no more: a replica is kept free for it."""
    pods = [Server(f"pod-{number}", survives=survives) for number in range(4)]
    sim = pool(*pods)
    poison: list[int] = []

    def kills(batch: Batch) -> bool:
        return any(query.index in poison for item in batch.items for query in item.waiters)

    for pod in pods:
        pod.kills = kills
    flood(sim, START_S + 3.0)
    sim.at(START_S + 0.5, lambda: poison.append(sim.put(10, Priority.INTERACTIVE)))
    sim.run(START_S + 20.0)
    assert [query.index for query in sim.poison] == poison
    assert survives or 2 <= sum(pod.deaths > 0 for pod in pods) <= 3  # the first, and two that prove it in turns
