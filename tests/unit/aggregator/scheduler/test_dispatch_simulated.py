"""Queue, packing, replicas and retries together, over servers and networks in virtual time."""

from __future__ import annotations

import random
from math import inf
from statistics import mean

import pytest
from typing_extensions import override

from aggregator.scheduler.dispatcher import Batch, Dispatcher, DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import Replica, SendReason
from aggregator.scheduler.retries import Retries
from aggregator.scheduler.work_item import Priority
from tests.fakes.simulation import CURVE, Server, Simulation, ignore

POLICY = DispatchPolicy(queue=QueuePolicy(coalesce=False))
START_S = 100.0


def pool(*servers: Server, replica: type[Replica] = Replica, network_s: float = 0.001, seed: int = 1) -> Simulation:
    dispatcher = Dispatcher("m", POLICY)
    for server in servers:
        dispatcher.replicas[server.name] = replica(server.name, server.measured, 600, POLICY.replica)
    return Simulation(dispatcher, servers, seed=seed, network_s=network_s)


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


def test_a_lone_query_goes_at_once() -> None:
    server = Server("a")
    sim = pool(server)
    asked = [START_S + 0.1 * number for number in range(20)]
    for time_s in asked:
        sim.at(time_s, lambda: ignore(sim.put(10)))
    sim.run()
    assert [at_s for at_s, _ in server.sent] == asked
    assert {batch.reason for _, batch in server.sent} == {SendReason.IDLE}


STEP_S = 5.0 * CURVE.time_s(600)


def interactive_latency_s(replica: type[Replica]) -> float:
    """Mean latency of interactive calls during a flood of background work, in steps of STEP_S."""
    sim = pool(Server("a", slowness=5.0), replica=replica)
    flood(sim, START_S + 20.0)
    times, calls = random.Random(3), list[int]()
    for _ in range(200):
        sim.at(START_S + times.uniform(1.0, 19.0), lambda: calls.append(sim.put(10, Priority.INTERACTIVE)))
    sim.run(START_S + 20.0)
    return mean(sim.latency_s[call] for call in calls)


class SealedWhenFull(Replica):
    """Stages the next batch as soon as one runs: in a flood a budget is always full."""

    @override
    def due_s(self, now_s: float, queued_tokens: float = inf) -> float:
        return now_s if self.batches_out < 2 else super().due_s(now_s, queued_tokens)


@pytest.mark.slow
def test_staging_as_soon_as_a_budget_is_full_makes_an_interactive_call_wait_a_batch_longer() -> None:
    ours_s = interactive_latency_s(Replica)
    naive_s = interactive_latency_s(SealedWhenFull)
    assert ours_s < 1.7 * STEP_S  # the rest of the running step, its own, and the lead
    assert naive_s > ours_s + 0.8 * STEP_S


def test_a_replica_ten_times_slower_gets_no_query_that_another_would_finish_sooner() -> None:
    fast, slow = Server("fast"), Server("slow", slowness=10.0)
    sim = pool(slow, fast)
    times = random.Random(3)
    for _ in range(300):
        sim.at(START_S + times.uniform(0.0, 6.0), lambda: ignore(sim.put(10)))
    sim.run()
    assert not slow.sent
    assert max(sim.latency_s.values()) < 0.035


@pytest.mark.slow
def test_but_it_takes_its_part_of_an_overload() -> None:
    fast, slow = Server("fast"), Server("slow", slowness=3.0)
    sim = pool(slow, fast)
    flood(sim, START_S + 5.0)
    sim.run(START_S + 5.0)
    assert idle_share(slow, START_S + 1.0, START_S + 5.0) < 0.05
    assert idle_share(fast, START_S + 1.0, START_S + 5.0) < 0.01


class TakesItsTurn(Replica):
    """Is never passed by: the first idle replica gets what waits."""

    @override
    def finishes_by(self, by_s: float, tokens: int, now_s: float) -> int:
        return 0


def test_without_the_rule_a_slow_replica_holds_a_query_for_ten_times_as_long() -> None:
    fast, slow = Server("fast"), Server("slow", slowness=10.0)
    sim = pool(slow, fast, replica=TakesItsTurn)
    times = random.Random(3)
    for _ in range(300):
        sim.at(START_S + times.uniform(0.0, 6.0), lambda: ignore(sim.put(10)))
    sim.run()
    assert max(sim.latency_s.values()) > 0.1


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


class AlwaysSure(Replica):
    """Refuses on predictions without asking what they stand on."""

    @override
    def has_evidence(self, now_s: float) -> bool:
        return True


def answered_after_a_slow_hour(replica: type[Replica]) -> list[float]:
    """When queries of 100 ms deadline are answered by a server that was a hundred times slower, and is not now."""
    server = Server("a", slowness=100.0)
    sim = pool(server, replica=replica)
    sim.dispatcher.replicas["a"] = replica("a", CURVE, 600, POLICY.replica)
    for second in range(60):
        sim.at(START_S + 1.1 * second, lambda: ignore(sim.put(10)))
    sim.run(START_S + 66.0)
    healed_s = sim.now_s
    server.slowness = 1.0
    for number in range(800):
        sim.at(healed_s + 0.01 * number, lambda: ignore(sim.put(10, within_s=0.1)))
    sim.run()
    return [at_s - healed_s for at_s, _ in server.sent if at_s > healed_s]


def test_refusal_without_fresh_evidence_locks_everybody_out() -> None:
    assert not answered_after_a_slow_hour(AlwaysSure)
    ours = answered_after_a_slow_hour(Replica)
    assert ours[0] < 5.1  # one goes through, and shows that the replica is well
    assert len(ours) > 200


def killed_by_one_query(retries: type[Retries], *, survives: bool = False) -> tuple[Simulation, list[Server]]:
    """Four servers in an overload, and one query that kills whoever computes it, or makes it fail."""
    pods = [Server(f"pod-{number}", survives=survives) for number in range(4)]
    sim = pool(*pods)
    sim.dispatcher.retries = retries(POLICY.retry)
    poison: list[int] = []

    def kills(batch: Batch) -> bool:
        return any(query.index in poison for item in batch.items for query in item.waiters)

    for pod in pods:
        pod.kills = kills
    flood(sim, START_S + 3.0)
    sim.at(START_S + 0.5, lambda: poison.append(sim.put(10, Priority.INTERACTIVE)))
    sim.run(START_S + 3.0)
    assert {query.index for query in sim.poison} <= set(poison)
    return sim, pods


class Roaming(Retries):
    """Sends a suspect wherever a replica is free."""

    @override
    def reserves(self, replica: str, now_s: float) -> bool:
        if not self._suspects.out:
            self._suspects.replica = replica
        return super().reserves(replica, now_s)


@pytest.mark.slow
def test_a_query_that_kills_engines_kills_two_pods_and_is_cornered_in_an_overload() -> None:
    sim, pods = killed_by_one_query(Retries)
    assert sum(pod.deaths > 0 for pod in pods) == 2  # the first and the one that tried the whole batch again
    assert len(sim.poison) == 1


@pytest.mark.slow
def test_a_suspect_that_is_not_pinned_to_a_replica_kills_every_pod() -> None:
    _, pods = killed_by_one_query(Roaming)
    assert all(pod.deaths for pod in pods)


class Unreserved(Retries):
    """Waits for its replica to come free by itself."""

    @override
    def reserves(self, replica: str, now_s: float) -> bool:
        return False


@pytest.mark.slow
def test_a_suspect_for_which_no_replica_is_kept_free_waits_as_long_as_the_overload_lasts() -> None:
    sim, _ = killed_by_one_query(Unreserved, survives=True)
    assert not sim.poison
    sim, _ = killed_by_one_query(Retries, survives=True)
    assert len(sim.poison) == 1


def test_a_server_that_is_busy_is_left_alone_for_a_moment_and_its_batch_goes_again() -> None:
    sim = pool(Server("a"))
    sim.put(10)
    (batch,) = sim.dispatcher.due(START_S, max_items=10).batches
    sim.dispatcher.refused(batch, START_S, 0.5)
    assert list(sim.dispatcher.waiting()) == batch.items
    held = sim.dispatcher.due(START_S, max_items=10)
    assert (held.batches, held.wake_s) == ([], START_S + POLICY.retry.backoff_s * 0.5)
    (again,) = sim.dispatcher.due(START_S + POLICY.retry.backoff_s, max_items=10).batches
    assert (again.items, again.attempt, again.isolated, again.reason) == (batch.items, 0, False, SendReason.RETRY)
