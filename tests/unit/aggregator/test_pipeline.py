"""The path of a request through the pipeline, in virtual time, among fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from aggregator.core.query import Priority, Source
from aggregator.core.queue import QueuePolicy
from aggregator.errors import Code, EngineFailed, ModelServerBusy, ModelServerLost
from aggregator.ports import OutgoingBatch, StepResult, TokenBatch
from aggregator.request import Failure, Request
from aggregator.vectors import Vector
from tests.fakes.clock import run
from tests.fakes.world import DESCRIPTION, MODEL, FakeCounting, SerialEngine, WordTokenizer, World, vectors


async def _occupy(world: World) -> list[Request]:
    """Give the only engine a batch to run and one to stage, so that whatever comes next waits in the queue."""
    requests = [world.request(text, source=Source.KAFKA) for text in ("1", "2")]
    for request in requests:
        world.produce(request)
        await asyncio.sleep(0.005)
    return requests


def test_a_call_gets_the_vector_of_its_own_text() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            requests = await asyncio.gather(*(world.embed(f"{number} 10") for number in range(20)))
        assert [vectors(request) for request in requests] == [[[number + 13.0, 4.0, 3.0, 4.0]] for number in range(20)]

    run(check())


def test_every_input_of_a_request_is_answered_in_its_place() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            request = await world.embed("10", "", "20 30", "x " * 40)
        assert vectors(request) == [
            [13.0, 3.0, 3.0, 4.0],
            "INVALID_ARGUMENT",
            [53.0, 4.0, 3.0, 4.0],
            "OUT_OF_RANGE",
        ]

    run(check())


def test_no_batch_exceeds_the_token_budget_and_none_is_left_half_empty_under_load() -> None:
    async def check() -> None:
        engine = SerialEngine()
        async with World(engine).started() as world:
            await asyncio.gather(*(world.embed(" ".join([str(number)] * (1 + number % 9))) for number in range(300)))
        assert max(batch.token_count for batch in engine.batches) <= 100
        assert sum(batch.token_count for batch in engine.batches[1:-1]) / (100 * len(engine.batches[1:-1])) > 0.9

    run(check())


def test_identical_inputs_are_computed_once_and_each_is_answered() -> None:
    async def check() -> None:
        engine = SerialEngine()
        async with World(engine).started() as world:
            await world.embed("1")
            requests = await asyncio.gather(world.embed("1 1 1"), *(world.embed("9 9") for _ in range(5)))
        assert all(vectors(request) == [[21.0, 4.0, 3.0, 4.0]] for request in requests[1:])
        assert sum(batch.query_count for batch in engine.batches) == 3

    run(check())


def test_an_over_long_text_is_cut_where_the_request_allows_it() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            request = await world.embed("5 " * 40, truncate="TRUNCATE_END")
        assert vectors(request)[0][1] == 32

    run(check())


def test_a_prompt_goes_before_the_text_of_a_query() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            request = await world.embed("10", input_type="INPUT_TYPE_QUERY")
        assert vectors(request) == [[20.0, 4.0, 3.0, 4.0]]

    run(check())


def test_a_text_that_the_tokenizer_cannot_take_harms_only_itself() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            world.produce(*(world.request(text, source=Source.KAFKA) for text in ("10", "uncountable", "20")))
            await asyncio.sleep(1)
        codes = sorted(request.code.name for request in world.kafka.settled)
        assert codes == ["INVALID_ARGUMENT", "OK", "OK"]

    run(check())


def test_a_text_that_the_tokenizer_cannot_cut_harms_only_itself() -> None:
    class Blunt(WordTokenizer):
        @override
        def truncate(self, text: str, max_tokens: int, *, keep_end: bool) -> bytes:
            raise ValueError("cannot be cut")

    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            world.model.revisions["r1"].tokenizer = Blunt()
            texts = ("1", "2 " * 40)
            requests = [world.request(text, source=Source.KAFKA, truncate="TRUNCATE_END") for text in texts]
            world.produce(*requests)
            await asyncio.sleep(1)
            assert {request.code for request in world.kafka.settled} == {Code.OK, Code.INVALID_ARGUMENT}
            await world.drain()

    run(check())


def test_requests_that_cannot_be_queued_for_a_reason_nobody_thought_of_are_each_settled_once() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            world.model.revisions["r1"].prompts = {}
            requests = [world.request(text, source=Source.KAFKA) for text in ("1", "2")]
            requests.append(world.request("3", source=Source.KAFKA, model="unknown"))
            world.produce(*requests)
            call = await world.embed("4")
            await world.drain()
            assert [request.code for request in (call, *requests)] == [Code.INTERNAL] * 3 + [Code.NOT_FOUND]
            assert sorted(map(id, world.kafka.settled)) == sorted(map(id, requests))

    run(check())


def test_an_unknown_model_is_not_found_and_an_alias_is() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            unknown = await world.embed("1", model="nobody")
            alias = await world.embed("1", model="alias")
            revision = await world.embed("1", model_revision="r9")
        assert [unknown.code, alias.code, revision.code] == [Code.NOT_FOUND, Code.OK, Code.NOT_FOUND]

    run(check())


def test_dimensions_that_the_model_does_not_have_are_refused() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            refused = await world.embed("1", dimensions=3)
            shortened = await world.embed("1", dimensions=2)
        assert [refused.code, shortened.code] == [Code.INVALID_ARGUMENT, Code.OK]

    run(check())


def test_what_expired_on_arrival_never_reaches_an_engine() -> None:
    async def check() -> None:
        engine = SerialEngine()
        async with World(engine).started() as world:
            request = await world.embed("1", in_s=-0.001)
        assert request.code is Code.DEADLINE_EXCEEDED
        assert not engine.batches

    run(check())


def test_a_deadline_fires_while_queued_although_nothing_is_popped() -> None:
    async def check() -> float:
        async with World(SerialEngine(slowness=1000.0)).started() as world:
            await _occupy(world)
            started_s = asyncio.get_running_loop().time()
            request = await world.embed("3", in_s=0.5)
            assert request.code is Code.DEADLINE_EXCEEDED
            return asyncio.get_running_loop().time() - started_s

    assert abs(run(check()) - 0.5) < 0.01


def test_a_caller_that_goes_away_takes_its_inputs_out_of_the_queue() -> None:
    async def check() -> None:
        engine = SerialEngine(slowness=100.0)
        async with World(engine).started() as world:
            await _occupy(world)
            call = asyncio.create_task(world.embed("3"))
            await asyncio.sleep(0.001)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await asyncio.sleep(10)
        assert sum(batch.query_count for batch in engine.batches) == 2
        assert world.model.admission.total == 0

    run(check())


def test_kafka_requests_are_settled_once_and_free_what_they_held() -> None:
    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            requests = [world.request(f"{number}", source=Source.KAFKA) for number in range(50)]
            world.produce(*requests)
            await asyncio.sleep(5)
        assert sorted(map(id, world.kafka.settled)) == sorted(map(id, requests))
        assert world.model.admission.total == 0

    run(check())


def test_kafka_waits_for_a_model_server_and_grpc_is_told_at_once() -> None:
    async def check() -> None:
        async with World().started() as world:
            assert (await world.embed("1")).code is Code.UNAVAILABLE
            world.produce(world.request("1", source=Source.KAFKA))
            await asyncio.sleep(100)
            assert not world.kafka.settled
            assert world.kafka.held(MODEL, Priority.DEFAULT)
            assert world.pool.members is not None
            world.pool.members.join(SerialEngine(), WordTokenizer())
            await asyncio.sleep(1)
            assert [request.code for request in world.kafka.settled] == [Code.OK]
            assert not world.kafka.held(MODEL, Priority.DEFAULT)

    run(check())


def test_calls_that_were_queued_when_the_last_server_went_are_told_soon_and_records_wait_on() -> None:
    async def check() -> None:
        engine = SerialEngine(slowness=1e6)
        async with World(engine).started() as world:
            assert world.pool.members is not None
            calls = [asyncio.create_task(world.embed(f"{number} 2 3")) for number in range(300)]
            world.produce(world.request("1", source=Source.KAFKA))
            await asyncio.sleep(0.5)
            world.pool.members.leave(engine)
            await asyncio.sleep(1.9)
            assert not any(call.done() for call in calls)
            await asyncio.sleep(0.2)
            codes = [call.result().code for call in calls if call.done()]
            assert len(codes) >= 20  # the others are under way
            assert set(codes) == {Code.UNAVAILABLE}
            assert not world.kafka.settled
            world.pool.members.join(SerialEngine(replace(DESCRIPTION, address="server-2:1")), WordTokenizer())
            await asyncio.sleep(1)
            assert [request.code for request in world.kafka.settled] == [Code.OK]
            for call in calls:
                call.cancel()

    run(check())


def test_waiting_for_a_model_server_can_be_bounded() -> None:
    async def check() -> None:
        engine = SerialEngine()
        async with World(engine, max_unavailable_s=30.0).started() as world:
            assert world.pool.members is not None
            world.pool.members.leave(engine)
            world.produce(world.request("1", source=Source.KAFKA))
            await asyncio.sleep(29)
            assert not world.kafka.settled
            await asyncio.sleep(2)
            assert [request.code for request in world.kafka.settled] == [Code.UNAVAILABLE]

    run(check())


def test_a_parked_request_expires() -> None:
    async def check() -> None:
        async with World().started() as world:
            world.produce(world.request("1", source=Source.KAFKA, in_s=5.0))
            await asyncio.sleep(6)
            assert [request.code for request in world.kafka.settled] == [Code.DEADLINE_EXCEEDED]

    run(check())


def test_a_batch_whose_server_is_lost_is_answered_by_another_and_the_server_is_suspect() -> None:
    async def check() -> None:
        first = SerialEngine(failures=[ModelServerLost("gone")])
        second = SerialEngine(replace(DESCRIPTION, address="server-2:1"), slowness=3.0)
        async with World(first, second).started() as world:
            request = await world.embed("1 2 3")
            assert request.code is Code.OK
            assert world.pool.suspects == [first]
            assert second.batches[0].attempt == 1

    run(check())


def test_a_busy_server_costs_no_attempt() -> None:
    async def check() -> None:
        engine = SerialEngine(failures=[ModelServerBusy("full")] * 5)
        async with World(engine).started() as world:
            request = await world.embed("1")
        assert request.code is Code.OK
        assert {batch.attempt for batch in engine.batches} == {0}

    run(check())


def test_one_poison_fails_alone_its_batch_mates_are_answered_and_it_is_quarantined() -> None:
    async def check() -> None:
        engines = [
            SerialEngine(poison=frozenset({666})),
            SerialEngine(replace(DESCRIPTION, address="b:1"), frozenset({666})),
        ]
        async with World(*engines).started() as world:
            texts = [str(number) for number in range(15)] + ["666"]
            requests = await asyncio.gather(*(world.embed(text) for text in texts))
            assert [request.code for request in requests] == [Code.OK] * 15 + [Code.INTERNAL]
            sends = sum(len(engine.batches) for engine in engines)
            again = await world.embed("666")
            assert again.code is Code.INTERNAL
            assert sum(len(engine.batches) for engine in engines) == sends

    run(check())


def test_an_error_for_one_query_of_a_batch_reaches_that_query_only() -> None:
    class Choosy(SerialEngine):
        @override
        async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
            result = await super().embed(batch, timeout_s=timeout_s)
            return replace(result, errors=[(0, int(Code.INVALID_ARGUMENT), "id out of vocabulary")])

    async def check() -> None:
        async with World(Choosy()).started() as world:
            request = await world.embed("1", "2")
        outcomes = request.outcomes
        assert isinstance(outcomes[0], Failure)
        assert not isinstance(outcomes[1], Failure)

    run(check())


def test_above_the_bound_grpc_is_refused_and_kafka_topics_are_held_by_class() -> None:
    async def check() -> None:
        engine = SerialEngine(slowness=1000.0)
        async with World(engine, max_held_tokens=100).started() as world:
            world.produce(*(world.request("1", source=Source.KAFKA) for _ in range(18)))
            await asyncio.sleep(0.01)
            assert world.kafka.held(MODEL, Priority.BACKGROUND)
            assert not world.kafka.held(MODEL, Priority.DEFAULT)
            calls = [asyncio.create_task(world.embed("1")) for _ in range(20)]
            done, _ = await asyncio.wait(calls, timeout=0.01)
            assert {call.result().code for call in done} == {Code.RESOURCE_EXHAUSTED}
            assert 1 <= len(done) <= 6
            assert world.kafka.held(MODEL, Priority.DEFAULT)

    run(check())


def test_requests_of_a_partition_that_was_given_back_are_dropped() -> None:
    async def check() -> None:
        engine = SerialEngine(slowness=100.0)
        async with World(engine).started() as world:
            under_way = await _occupy(world)
            world.produce(*(world.request("3", source=Source.KAFKA) for _ in range(5)))
            await asyncio.sleep(0.001)
            world.pipeline.forget(lambda request: request not in under_way)
            await asyncio.sleep(10)
            assert world.kafka.settled == under_way
            assert world.model.admission.total == 0
            await world.drain()

    run(check())


def test_a_new_revision_takes_over_what_waited_for_the_old_one_without_mixing() -> None:
    async def check() -> None:
        old = SerialEngine(slowness=1000.0)
        new = SerialEngine(replace(DESCRIPTION, address="new:1", model_revision="r2"))
        async with World(old).started() as world:
            assert world.pool.members is not None
            await _occupy(world)
            waiting = world.request("3", "4", source=Source.KAFKA)
            world.produce(waiting)
            await asyncio.sleep(0.001)
            world.pool.members.join(new, WordTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(0.5)
            assert world.kafka.settled == [waiting]
            revisions = {outcome.batch.model_revision for outcome in waiting.outcomes if isinstance(outcome, Vector)}
            assert revisions == {"r2"}

    run(check())


def test_what_a_revision_decided_is_decided_anew_by_the_one_that_takes_over() -> None:
    async def check() -> None:
        old = SerialEngine(slowness=1000.0)
        wider = replace(DESCRIPTION, address="new:1", model_revision="r2", dimensions=8, normalizes=True)
        async with World(old).started() as world:
            assert world.pool.members is not None
            await _occupy(world)
            waiting = world.request("3", source=Source.KAFKA)
            world.produce(waiting)
            await asyncio.sleep(0.001)
            world.pool.members.join(SerialEngine(wider), WordTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(0.5)
            assert waiting.code is Code.OK
            assert (waiting.options.dimensions, waiting.options.normalize) == (8, True)

    run(check())


def test_a_server_that_comes_back_under_its_revision_with_other_limits_is_taken_at_its_word() -> None:
    async def check() -> None:
        old = SerialEngine()
        async with World(old).started() as world:
            assert world.pool.members is not None
            assert (await world.embed("1 " * 40)).code is Code.OUT_OF_RANGE
            world.pool.members.leave(old)
            waiting = world.request("1 " * 40, source=Source.KAFKA)
            world.produce(waiting)
            await asyncio.sleep(0.001)
            longer = SerialEngine(replace(DESCRIPTION, instance_id="2", max_input_tokens=64, step_query_capacity=1))
            world.pool.members.join(longer, WordTokenizer())
            assert (await world.embed("1 " * 40)).code is Code.OK
            await asyncio.gather(*(world.embed(str(number)) for number in range(10)))
            assert {batch.query_count for batch in longer.batches} == {1}
            assert world.model.admission.total == 0

    run(check())


def test_what_fails_at_a_revision_that_was_taken_over_goes_to_the_new_one() -> None:
    async def check() -> None:
        old = SerialEngine(slowness=1000.0, failures=[ModelServerLost("gone"), ModelServerLost("gone")])
        new = SerialEngine(replace(DESCRIPTION, address="new:1", model_revision="r2"))
        async with World(old).started() as world:
            assert world.pool.members is not None
            under_way = await _occupy(world)
            world.pool.members.join(new, WordTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(10)
            assert {request.code for request in world.kafka.settled} == {Code.OK}
            assert sorted(map(id, world.kafka.settled)) == sorted(map(id, under_way))
            await world.drain()

    run(check())


def test_a_request_that_is_half_under_way_when_another_revision_takes_over_begins_anew() -> None:
    async def check() -> None:
        old = SerialEngine(slowness=100.0)
        new = SerialEngine(replace(DESCRIPTION, address="new:1", model_revision="r2"), slowness=300.0)
        async with World(old).started() as world:
            assert world.pool.members is not None
            request = world.request(*(f"{number} 1 1 1 1 1 1 1" for number in range(25)), source=Source.KAFKA)
            world.produce(request)
            await asyncio.sleep(0.001)
            assert sum(batch.query_count for batch in old.batches) == 20
            world.pool.members.join(new, WordTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(30)
            assert world.kafka.settled == [request]
            revisions = {outcome.batch.model_revision for outcome in request.outcomes if isinstance(outcome, Vector)}
            assert revisions == {"r2"}
            assert world.model.admission.total == 0
            await world.drain()

    run(check())


def test_a_request_whose_tokens_are_counted_while_another_revision_takes_over_goes_there() -> None:
    class Slow(FakeCounting):
        @override
        async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
            await asyncio.sleep(1)
            return await super().count(texts, long=long)

    async def check() -> None:
        old = SerialEngine()
        new = SerialEngine(replace(DESCRIPTION, address="new:1", model_revision="r2"))
        async with World(old).started() as world:
            assert world.pool.members is not None
            world.model.revisions["r1"].counting = Slow(WordTokenizer())
            call = asyncio.create_task(world.embed("1", in_s=60))
            await asyncio.sleep(0.5)
            world.pool.members.join(new, WordTokenizer())
            world.pool.members.leave(old)
            request = await call
            assert request.code is Code.OK
            assert new.batches
            assert not old.batches

    run(check())


def test_a_text_that_takes_long_to_count_keeps_no_other_waiting() -> None:
    class Slow(FakeCounting):
        @override
        async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
            if long:
                await asyncio.sleep(5)
            return await super().count(texts, long=long)

    async def check() -> None:
        async with World(SerialEngine()).started() as world:
            world.model.revisions["r1"].counting = Slow(WordTokenizer())
            texts = ("1 " * 50_000, "2", "3")
            requests = [world.request(text, source=Source.KAFKA, truncate="TRUNCATE_END") for text in texts]
            world.produce(*requests)
            call = asyncio.create_task(world.embed("4", in_s=1))
            await asyncio.sleep(0.5)
            assert world.kafka.settled == requests[1:]
            assert (await call).code is Code.OK
            await asyncio.sleep(6)
            assert {request.code for request in world.kafka.settled} == {Code.OK}
            await world.drain()
            assert world.model.admission.total == 0

    run(check())


class NotingCounting(FakeCounting):
    """Notes how many texts each count had."""

    def __init__(self) -> None:
        super().__init__(WordTokenizer())
        self.counts: list[int] = []

    @override
    async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
        self.counts.append(len(texts))
        return await super().count(texts, long=long)


def test_calls_that_come_while_no_server_could_take_them_are_admitted_together() -> None:
    async def check() -> None:
        async with World(SerialEngine(slowness=20.0)).started() as world:
            await _occupy(world)
            world.model.revisions["r1"].counting = counting = NotingCounting()
            calls: list[asyncio.Task[Request]] = []
            for number in range(5):
                calls.append(asyncio.create_task(world.embed(str(number))))
                await asyncio.sleep(0.0003)
            assert {request.code for request in await asyncio.gather(*calls)} == {Code.OK}
        assert counting.counts == [5]

    run(check())


def test_a_call_that_finds_a_server_idle_is_not_kept() -> None:
    async def check() -> None:
        engine = SerialEngine()
        async with World(engine).started() as world:
            started_s = asyncio.get_running_loop().time()
            request = await world.embed("1")
            [outcome] = request.outcomes
            assert isinstance(outcome, Vector)
            took_s = asyncio.get_running_loop().time() - started_s
            assert took_s - outcome.batch.inference_s < 1e-6

    run(check())


def test_a_drain_finishes_what_was_taken_in() -> None:
    async def check() -> None:
        async with World(SerialEngine(slowness=50.0)).started() as world:
            world.produce(*(world.request(str(number), source=Source.KAFKA) for number in range(100)))
            await asyncio.sleep(0.001)
            await world.drain()
            assert len(world.kafka.settled) == 100

    run(check())


def test_a_drain_leaves_what_no_server_can_do_to_the_next_reader() -> None:
    async def check() -> None:
        engine = SerialEngine(slowness=50.0)
        async with World(engine).started() as world:
            assert world.pool.members is not None
            world.pool.members.leave(engine)
            record = world.request("1", source=Source.KAFKA)
            world.produce(record)
            await asyncio.sleep(1)
            began_s = asyncio.get_running_loop().time()
            await world.drain()
            assert asyncio.get_running_loop().time() - began_s < 1
            assert not world.kafka.settled
            assert not record.origin.lease.settled
            assert world.model.admission.total == 0

    run(check())


def test_an_input_that_holds_its_partitions_watermark_back_is_aged() -> None:
    async def check() -> None:
        engine = SerialEngine()
        async with World(engine, queue=QueuePolicy(max_wait_s=(1e9, 1e9, 1e9))).started() as world:
            stuck = world.request("7", source=Source.KAFKA, priority="PRIORITY_BACKGROUND")
            flood = [world.request(f"{number} 1 1 1", source=Source.KAFKA) for number in range(200)]
            world.kafka.held_back.append(stuck.origin.lease)
            world.produce(stuck, *flood)
            await asyncio.sleep(5)
            assert world.kafka.settled.index(stuck) < 100

    run(check())


def test_an_engine_that_fails_for_everybody_ends_in_dead_letters_not_in_a_loop() -> None:
    async def check() -> None:
        engine = SerialEngine(failures=[EngineFailed("broken")] * 1000)
        async with World(engine).started() as world:
            world.produce(*(world.request(str(number), source=Source.KAFKA) for number in range(8)))
            await asyncio.sleep(60)
            assert {request.code for request in world.kafka.settled} == {Code.INTERNAL}
            assert len(world.kafka.settled) == 8

    run(check())
