"""A server that generates takes prompts while it has places and memory for them; what goes away goes on elsewhere."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from aggregator.scheduler.curve import Curve, Rule
from aggregator.scheduler.dispatcher import Dispatcher, DispatchPolicy
from aggregator.scheduler.replica import Replica, ReplicaPolicy, StepReport
from aggregator.scheduler.replica_choice import choose_replica
from aggregator.scheduler.work_item import Priority, Query
from aggregator.wings.generation.replica import GeneratingReplica, MeanLength, first_token_in_s
from tests.support.queries import packed

CURVE = Curve(0.0, 0.01, 0.0001, 500, Rule.THROUGHPUT, 2048)


def replica(name: str = "a", kv_tokens: int = 1000, max_sequences: int = 4, **more: Any) -> GeneratingReplica:
    given: dict[str, Any] = {"kv_tokens": kv_tokens, "max_sequences": max_sequences, "per_sequence_s": 0.001, **more}
    return GeneratingReplica(name, CURVE, 500, ReplicaPolicy(), **given)


def test_it_takes_a_batch_while_it_has_places() -> None:
    server = replica(max_sequences=2)
    assert server.due_s(1.0) == 1.0
    server.began()
    assert (server.seats, server.due_s(1.0)) == (1, 1.0)
    server.began()
    assert (server.seats, server.due_s(1.0)) == (0, inf)
    server.finished()
    assert server.due_s(1.0) == 1.0


def test_what_others_run_there_takes_places_too() -> None:
    server = replica()
    server.began()
    seats: list[int] = []
    for running in (0, 1, 3, 9):
        server.observe_load(free_kv_tokens=1000, running=running)
        seats.append(server.seats)
    assert seats == [3, 3, 1, 0]


def test_its_room_is_what_is_free_less_what_is_sent_and_what_will_grow() -> None:
    server = replica(kv_tokens=1000)
    assert server.room_tokens == 1000
    server.sent("b", 300, 1.0)
    assert server.room_tokens == 700
    server.began()
    assert server.room_tokens == 700 - 32
    server.observe_load(free_kv_tokens=310, running=1)
    assert server.room_tokens == 0
    assert server.due_s(1.0) == inf


def test_few_prompts_are_sent_as_early_as_many() -> None:
    """Its reports know no idle time, so that none says which lead is right."""
    server = replica()
    server.light_lead.value_s = 0.001
    server.sent("b", 300, 1.0)
    assert server.due_s(1.0, share_tokens=1) == server.due_s(1.0, share_tokens=500) < server.end_s - 0.001


def test_without_anything_of_ours_it_is_asked_however_full_it_seems() -> None:
    """What it said last may be old: nothing of ours would end and tell of room."""
    server = replica()
    server.observe_load(free_kv_tokens=0, running=9)
    assert server.due_s(1.0) == 1.0
    assert server.batch_tokens(100) == 1


def test_a_batch_holds_no_more_than_the_budget_and_the_room() -> None:
    server = replica(kv_tokens=400)
    assert server.batch_tokens(10_000, 10_000, 5.0) == 400
    assert replica(kv_tokens=9_000).batch_tokens(10_000, 10_000, 5.0) == 500


def test_longer_generations_are_expected_to_grow_more() -> None:
    length = MeanLength()
    server = replica(kv_tokens=1000, length=length)
    server.began()
    before = server.room_tokens
    length.observe(900)
    assert length.new_tokens == pytest.approx(64 + 0.02 * (900 - 64))
    assert server.room_tokens < before


def test_what_decodes_makes_first_tokens_later() -> None:
    server = replica()
    alone_s = server.finish_s(100, 1.0)
    for _ in range(3):
        server.began()
    assert server.finish_s(100, 1.0) == pytest.approx(alone_s + 0.003)
    alike = GeneratingReplica("a", CURVE, 500, ReplicaPolicy(), kv_tokens=1000, max_sequences=4)
    alike.began()
    assert alike.finish_s(100, 1.0) == pytest.approx(alone_s)


def query() -> Query:
    return Query(object(), 0, Priority.DEFAULT, "", 0.0, inf)


@pytest.mark.parametrize(("of_others", "sent"), [(0, 3), (9, 1)])
def test_no_more_prompts_are_sent_than_places_but_one_to_an_idle_server(of_others: int, sent: int) -> None:
    dispatcher = Dispatcher("m", DispatchPolicy())
    dispatcher.replicas["a"] = server = replica(max_sequences=3)
    server.observe_load(free_kv_tokens=1000, running=of_others)
    for number in range(5):
        dispatcher.queue.put(query(), bytes([number] * 4), 1)
    due = dispatcher.due(0.0, max_items=64)
    assert next(len(batch.items) for batch in due.batches) == sent


@pytest.mark.parametrize(("servers", "prompts"), [("a", (300, 201)), ("ab", (300, 201, 500))])
def test_prompts_that_wait_are_shared_out_at_once_in_more_than_budgets(servers: str, prompts: tuple[int, ...]) -> None:
    dispatcher = Dispatcher("m", DispatchPolicy())
    for name in servers:
        dispatcher.replicas[name] = replica(name, kv_tokens=9000, capacity=2000)
    for tokens in prompts:
        dispatcher.queue.put(query(), packed(tokens), tokens)
    assert dispatcher.due(0.0, max_items=64).batches[0].token_count == 501


@pytest.mark.parametrize("again", [False, True])
def test_what_a_server_began_resumes_elsewhere_or_apart_as_a_suspect(*, again: bool) -> None:
    dispatcher = Dispatcher("m", DispatchPolicy())
    dispatcher.replicas["a"], dispatcher.replicas["b"] = replica("a"), replica("b")
    dispatcher.queue.put(query(), b"1234", 1)
    batch = dispatcher.due(0.0, max_items=64).batches[0]
    dispatcher.done(batch, StepReport(1, 0.01, 0, 0.0, 0.0), 0.1)
    dispatcher.lost(batch.items, batch.replica.name, 0.2, 0.0, again=again)
    (resumed,) = dispatcher.due(0.3, max_items=64).batches
    assert (resumed.items, resumed.attempt, resumed.isolated) == (batch.items, 1 + again, again)
    assert (resumed.replica is batch.replica) == again


def busy(name: str = "a", *, at_s: float = 1.0) -> GeneratingReplica:
    """Both of its places are taken, and a step came back lately."""
    server = replica(name, max_sequences=2)
    server.began()
    server.began()
    server.sent(name, 10, at_s - 0.1)
    server.ended(name, at_s, StepReport(10, 0.02, 0, 0.0, 0.0))
    return server


def test_a_first_token_is_expected_once_earlier_generations_have_ended() -> None:
    server, first_s = busy(), first_token_in_s([busy()], 0, 10, 1.0)
    each_s = 1 / server.generations_per_s
    assert each_s == pytest.approx(64 * (server.step_time_s(1) + 0.002) / 2)
    alone_s = server.finish_s(10, 1.0) - 1.0
    assert first_s == pytest.approx(each_s + alone_s)
    assert first_token_in_s([server], 3, 10, 1.0) == pytest.approx(4 * each_s + alone_s)
    assert first_token_in_s([server, busy("b")], 3, 10, 1.0) == pytest.approx(2 * each_s + alone_s)
    server.finished()
    assert first_token_in_s([server], 0, 10, 1.0) == pytest.approx(server.finish_s(10, 1.0) - 1.0), "there is a place"
    server.finished()
    for ahead in (0, 1):
        assert first_token_in_s([server], ahead, 10, 1.0) == pytest.approx(server.finish_s(10, 1.0) - 1.0)


def test_nothing_is_expected_without_fresh_evidence() -> None:
    assert first_token_in_s([busy(), busy("b", at_s=-1000.0)], 9, 10, 1.0) == 0.0
    assert first_token_in_s([busy(), Replica("c", CURVE, 500, ReplicaPolicy())], 9, 10, 1.0) == 0.0
    assert first_token_in_s([], 9, 10, 1.0) == 0.0
    idle = busy()
    idle.finished()
    idle.finished()
    idle.observe_load(free_kv_tokens=0, running=9)
    assert [first_token_in_s([idle], ahead, 10, 1.0) for ahead in (0, 9)] == [0.0, 0.0], "none of ours would end"


@pytest.mark.parametrize(("share", "cut"), [(0, 500), (800, 800), (9000, 2000)])
def test_it_takes_its_share_of_the_prompts_that_wait_at_once(share: int, cut: int) -> None:
    server = replica(kv_tokens=9_000, max_sequences=99, capacity=2000)
    assert server.batch_tokens(10_000, 0, 0.0, share) == cut


TALK, OTHER = packed(*range(300)), packed(*range(64), *range(1000, 1300))


def test_it_knows_the_beginnings_of_the_prompts_that_it_had_lately() -> None:
    server = replica()
    server.note_prompts([packed(1, 2, 3), TALK])
    assert [server.known_tokens(each) for each in (packed(1, 2, 3), TALK, OTHER, OTHER[4:])] == [0, 256, 64, 0]
    others = [packed(number, *range(1, 64)) for number in range(1, 4098)]
    server.note_prompts(others[:4096])
    assert [server.known_tokens(each) for each in (TALK, others[0])] == [0, 64]
    server.note_prompts([others[0], others[4096]])  # it had the first one again
    assert [server.known_tokens(each) for each in others[:3]] == [64, 0, 64]
    assert Replica("c", CURVE, 500, ReplicaPolicy()).known_tokens(TALK) == 0


def test_a_conversation_goes_on_where_it_was() -> None:
    dispatcher = Dispatcher("d", DispatchPolicy(by_prefix=True))
    a, b = replica("a", kv_tokens=9000), replica("b", kv_tokens=9000)
    dispatcher.replicas["a"], dispatcher.replicas["b"] = a, b

    def sent(prompt: bytes) -> str:
        """Who takes a prompt; its texts end at once."""
        dispatcher.queue.put(Query(None, 0, Priority.DEFAULT, "", 1.0, inf), prompt, len(prompt) // 4)
        (batch,) = dispatcher.due(1.0, max_items=9).batches
        took_s = CURVE.time_s(batch.token_count)
        dispatcher.done(batch, StepReport(batch.token_count, took_s, 0, 0.0, 0.0), 1.0)
        return batch.replica.name

    b.note_prompts([TALK])
    assert [sent(TALK), sent(OTHER), sent(packed(*range(500, 600)))] == ["b", "b", "a"]


@pytest.mark.parametrize(("step", "taken_by"), [(6, "b"), (7, "a")])
def test_a_server_that_had_a_prompt_takes_it_if_at_most_a_fifth_slower(step: int, taken_by: str) -> None:
    servers = [
        GeneratingReplica(
            name,
            Curve(0.0, times * 2**-10, 0.0, 500, Rule.FLAT, 2048),
            500,
            ReplicaPolicy(),
            kv_tokens=9000,
            max_sequences=4,
        )
        for name, times in (("a", 5), ("b", step))
    ]
    servers[1].note_prompts([TALK])
    chosen = choose_replica(servers, 0.0, 300, prompt=TALK).replica
    assert chosen is not None
    assert chosen.name == taken_by


def test_chats_of_one_system_prompt_are_told_apart_by_what_follows() -> None:
    system = tuple(range(1, 301))
    first, second = (packed(*system, *[number] * 300) for number in (7, 8))
    server = replica()
    server.note_prompts([first])
    assert [server.known_tokens(each) for each in (first, second)] == [512, 256]
    server.note_prompts([packed(*range(5000))])
    assert server.known_tokens(packed(*range(6000))) == 4096


def test_a_conversation_goes_anywhere_unless_prefixes_count() -> None:
    dispatcher = Dispatcher("d", DispatchPolicy())
    a, b = replica("a", kv_tokens=9000), replica("b", kv_tokens=9000)
    dispatcher.replicas["a"], dispatcher.replicas["b"] = a, b
    b.note_prompts([TALK])
    dispatcher.queue.put(query(), TALK, 300)
    assert [batch.replica.name for batch in dispatcher.due(1.0, max_items=9).batches] == ["a"]
