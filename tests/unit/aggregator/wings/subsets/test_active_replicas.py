"""The active_replicas: few replicas are all in use, of very many as many as there is work for."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.scheduler.dispatcher import Dispatcher, DispatchPolicy
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.replica import Replica
from aggregator.wings.subsets.active_replicas import ENOUGH, ActiveReplicas
from tests.support.replicas import POLICY, replica
from tests.support.simulated_servers import CURVE, Server, Simulation

MANY = 100
NOW_S = 5.0


def active_replicas_of(count: int, dispatcher: str = "m") -> ActiveReplicas:
    active_replicas = ActiveReplicas(dispatcher)
    for number in range(count):
        active_replicas[str(number)] = replica(str(number))
    return active_replicas


def test_few_replicas_are_all_in_use() -> None:
    active_replicas = active_replicas_of(ENOUGH)
    assert list(active_replicas.in_use.values()) == list(active_replicas.values())
    assert not active_replicas.widen()


def test_of_many_replicas_enough_are_in_use_and_more_once_those_are_busy() -> None:
    active_replicas = active_replicas_of(MANY)
    assert len(active_replicas) == MANY
    assert len(active_replicas.in_use) == ENOUGH
    while active_replicas.widen():
        pass
    assert active_replicas.in_use.keys() == set(active_replicas)


def test_which_are_in_use_depends_on_the_dispatcher_and_not_on_the_order() -> None:
    forwards, backwards = ActiveReplicas("m"), ActiveReplicas("m")
    for number in range(MANY):
        forwards[str(number)] = replica(str(number))
        backwards[str(MANY - 1 - number)] = replica(str(MANY - 1 - number))
    assert forwards.in_use.keys() == backwards.in_use.keys()
    used = {name for dispatcher in range(40) for name in active_replicas_of(MANY, str(dispatcher)).in_use}
    assert len(used) == MANY


def test_a_spare_one_takes_the_place_of_one_that_leaves() -> None:
    active_replicas = active_replicas_of(ENOUGH + 1)
    [spare] = set(active_replicas) - active_replicas.in_use.keys()
    gone = next(iter(active_replicas.in_use))
    del active_replicas[gone]
    assert spare in active_replicas.in_use
    assert gone not in active_replicas
    active_replicas[gone] = replica(gone)
    [spare] = set(active_replicas) - active_replicas.in_use.keys()
    del active_replicas[spare]
    assert active_replicas.in_use.keys() == set(active_replicas)
    gone = spare
    with pytest.raises(KeyError):
        del active_replicas[gone]


def test_the_first_turn_is_now_while_there_is_a_spare_replica() -> None:
    assert ActiveReplicas("m").due_s(NOW_S) == inf
    active_replicas = active_replicas_of(ENOUGH + 1)
    for one in active_replicas.in_use.values():
        one.sent("1", 100, NOW_S)
    assert active_replicas.due_s(NOW_S) == NOW_S
    active_replicas.widen()
    for one in active_replicas.in_use.values():
        one.hold_until(NOW_S + 2.0)
    assert active_replicas.due_s(NOW_S) == NOW_S + 2.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["join", "leave", "send", "end", "widen"]), st.integers(0, ENOUGH + 13)), max_size=300
    )
)
def test_whatever_happens_each_replica_is_in_use_or_spare_once(acts: list[tuple[str, int]]) -> None:
    active_replicas = active_replicas_of(ENOUGH)
    for act, number in acts:
        name = str(number)
        one = active_replicas.get(name)
        match act:
            case "join":
                active_replicas[name] = replica(name)
            case "leave":
                active_replicas.pop(name, None)
            case "widen":
                active_replicas.widen()
            case "send" if one is not None and not one.batches_out:
                one.sent("batch", 10, NOW_S)
            case "end" if one is not None and one.batches_out:
                one.ended("batch", NOW_S + 0.01, None)
                active_replicas.returned(one)
            case _:
                pass
        assert all(active_replicas[name] is one for name, one in active_replicas.in_use.items())
        assert len(active_replicas.in_use) >= min(ENOUGH, len(active_replicas))
    spare = set(active_replicas) - active_replicas.in_use.keys()
    widened = 0
    while active_replicas.widen():
        widened += 1
    assert widened == len(spare)
    assert active_replicas.in_use.keys() == set(active_replicas)


def pool() -> tuple[Dispatcher, list[Server]]:
    servers = [Server(str(number)) for number in range(MANY)]
    dispatcher = Dispatcher("m", DispatchPolicy(queue=QueuePolicy(coalesce=False), replicas=ActiveReplicas))
    for server in servers:
        dispatcher.replicas[server.name] = Replica(server.name, server.measured, 600, POLICY)
    return dispatcher, servers


def test_a_queue_that_enough_replicas_cannot_take_goes_to_more() -> None:
    dispatcher, servers = pool()
    assert dispatcher.replicas.in_use.keys() == active_replicas_of(MANY).in_use.keys()
    sim = Simulation(dispatcher, servers)
    for _ in range(50 * 30):
        sim.put(20)
    batches = dispatcher.due(sim.now_s, max_items=1024).batches
    assert [batch.token_count for batch in batches] == [600] * 50
    assert len({batch.replica.name for batch in batches}) == len(dispatcher.replicas.in_use) == 50


def test_a_spare_replica_takes_what_a_slow_one_is_passed_by_for() -> None:
    dispatcher, servers = pool()
    slow, *others = dispatcher.replicas.in_use
    dispatcher.replicas[slow] = Replica(slow, replace(CURVE, floor_s=1.0), 600, POLICY)
    assert slow in dispatcher.replicas.in_use
    sim = Simulation(dispatcher, servers)
    for name in others:
        dispatcher.replicas[name].sent(name, 600, sim.now_s)
    sim.put(20)
    [batch] = dispatcher.due(sim.now_s, max_items=1024).batches
    assert batch.replica.name not in {slow, *others}


@pytest.mark.parametrize("count", [ENOUGH, ENOUGH + 1])
def test_nothing_is_refused_as_late_that_a_spare_replica_could_answer(count: int) -> None:
    dispatcher = Dispatcher("m", DispatchPolicy(replicas=ActiveReplicas))
    for number in range(count):
        dispatcher.replicas[str(number)] = replica(str(number), warm=True)
    for one in dispatcher.replicas.in_use.values():
        one.sent("1", 100, 0.02)
    sim = Simulation(dispatcher, [])
    sim.clock.now_s = now_s = 0.031  # all are to be staged to
    sim.put(20, within_s=0.012)
    due = dispatcher.due(now_s, max_items=1024)
    assert len(due.late) == (count == ENOUGH)
    assert len(due.batches) == (count > ENOUGH)


def test_a_new_replica_takes_out_of_use_only_the_one_whose_place_it_takes() -> None:
    active_replicas = active_replicas_of(ENOUGH + 8)
    while active_replicas.widen():
        pass
    for newest in map(str, range(1000, 1040)):
        before = {*active_replicas.in_use, newest}
        active_replicas[newest] = replica(newest)
        assert len(before - set(active_replicas.in_use)) <= 1


def test_a_batch_of_a_replaced_replica_leaves_its_successor_in_use() -> None:
    active_replicas = active_replicas_of(MANY)
    always = set(active_replicas.in_use)
    while active_replicas.widen():
        pass
    name = next(name for name in active_replicas if name not in always)
    gone = active_replicas[name]
    active_replicas[name] = replica(name)
    while active_replicas.widen():
        pass
    active_replicas.returned(gone)
    assert name in active_replicas.in_use
    active_replicas.returned(active_replicas[name])
    assert name not in active_replicas.in_use


def test_a_replica_that_comes_free_is_spare_again_where_there_are_many() -> None:
    dispatcher, servers = pool()
    while dispatcher.replicas.widen():
        pass
    sim = Simulation(dispatcher, servers)
    for _ in range(MANY * 30):
        sim.put(20)
    for batch in dispatcher.due(sim.now_s, max_items=1024).batches:
        dispatcher.done(batch, None, sim.now_s + 0.014)
    assert len(dispatcher.replicas.in_use) == ENOUGH
