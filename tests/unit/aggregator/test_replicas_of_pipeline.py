"""Model servers come and go, and revisions take over: what waits for them is neither lost nor mixed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from aggregator.admission.tokenizers.tokenizer import TokenBatch
from aggregator.errors import Code, ModelServerLost
from aggregator.replicas.results import Vector
from aggregator.request import Request
from aggregator.scheduler.work_item import Priority
from tests.fakes.clock import run
from tests.fakes.sources import KAFKA
from tests.fakes.tokenizers import FakeTokenizer
from tests.fakes.world import DESCRIPTION, MODEL, FakeCounting, World, new_engine


def test_kafka_waits_for_a_first_model_server_and_grpc_is_told_at_once() -> None:
    async def check() -> None:
        async with World().started() as world:
            assert (await world.embed("1")).code is Code.UNAVAILABLE
            world.produce(world.request("1", source=KAFKA))
            await asyncio.sleep(100)
            assert not world.kafka.replied
            assert world.kafka.paused(MODEL, Priority.DEFAULT)
            assert world.pool.members is not None
            world.pool.members.join(new_engine(), FakeTokenizer())
            await asyncio.sleep(1)
            assert [request.code for request in world.kafka.replied] == [Code.OK]
            assert not world.kafka.paused(MODEL, Priority.DEFAULT)

    run(check())


def test_calls_wait_a_minute_for_another_server_when_the_last_one_went_and_records_wait_on() -> None:
    async def check() -> None:
        engine = new_engine(slowness=1e6)
        async with World(engine).started() as world:
            assert world.pool.members is not None
            calls = [asyncio.create_task(world.embed(f"{number} 2 3")) for number in range(300)]
            world.produce(world.request("1", source=KAFKA))
            await asyncio.sleep(0.5)
            world.pool.members.leave(engine)
            await asyncio.sleep(59.8)
            calls.append(asyncio.create_task(world.embed("1")))
            await asyncio.sleep(0.1)
            assert not any(call.done() for call in calls)
            await asyncio.sleep(0.2)
            codes = [call.result().code for call in calls if call.done()]
            assert len(codes) >= 20  # the others are under way
            assert calls[-1].done()
            assert (await world.embed("1")).code is Code.UNAVAILABLE
            assert set(codes) == {Code.UNAVAILABLE}
            assert not world.kafka.replied
            world.pool.members.join(new_engine(description=replace(DESCRIPTION, address="server-2:1")), FakeTokenizer())
            await asyncio.sleep(1)
            assert [request.code for request in world.kafka.replied] == [Code.OK]
            for call in calls:
                call.cancel()

    run(check())


def test_a_call_waits_for_the_first_server_of_a_model_that_scales_to_zero_and_is_seen_as_demand() -> None:
    async def check() -> None:
        async with World(scales_to_zero=True).started() as world:
            waiting = [asyncio.create_task(world.embed(*texts, in_s=60.0)) for texts in (("1",), ("2", "3"))]
            short = asyncio.create_task(world.embed("4", in_s=1.0))
            await asyncio.sleep(0.5)
            demand = world.pipeline.meter.of(world.model)
            assert demand.pending_requests == 3
            assert demand.grpc_tokens_per_s > 0.0
            await asyncio.sleep(30)
            assert (await short).code is Code.DEADLINE_EXCEEDED
            assert not any(call.done() for call in waiting)
            assert world.pool.members is not None
            world.pool.members.join(new_engine(), FakeTokenizer())
            assert [(await call).code for call in waiting] == [Code.OK, Code.OK]

    run(check())


def test_a_call_that_outlives_the_last_server_of_a_model_that_scales_to_zero_waits_for_the_next() -> None:
    async def check() -> None:
        engine = new_engine()
        async with World(engine, scales_to_zero=True).started() as world:
            assert world.pool.members is not None
            world.pool.members.leave(engine)
            call = asyncio.create_task(world.embed("1", in_s=60.0))
            await asyncio.sleep(30)
            assert not call.done()
            world.pool.members.join(new_engine(description=replace(DESCRIPTION, address="server-2:1")), FakeTokenizer())
            assert (await call).code is Code.OK

    run(check())


def test_a_caller_that_went_is_no_demand_for_a_model_that_scales_to_zero() -> None:
    async def check() -> None:
        async with World(scales_to_zero=True).started() as world:
            call = asyncio.create_task(world.embed("1"))
            await asyncio.sleep(0.5)
            call.cancel()
            await asyncio.sleep(0.5)
            assert world.pipeline.meter.of(world.model).pending_requests == 0

    run(check())


def test_a_drain_tells_calls_that_wait_for_a_first_server_to_go_elsewhere() -> None:
    async def check() -> None:
        async with World(scales_to_zero=True).started() as world:
            call = asyncio.create_task(world.embed("1"))
            world.produce(world.request("1", source=KAFKA))
            await asyncio.sleep(0.5)
            await asyncio.wait_for(world.drain(), 10)
            assert (await call).code is Code.UNAVAILABLE
            assert not world.kafka.replied  # its next reader has it

    run(check())


def test_waiting_for_a_model_server_can_be_bounded() -> None:
    async def check() -> None:
        engine = new_engine()
        async with World(engine, max_unavailable_s=30.0).started() as world:
            assert world.pool.members is not None
            world.pool.members.leave(engine)
            world.produce(world.request("1", source=KAFKA))
            await asyncio.sleep(29)
            assert not world.kafka.replied
            await asyncio.sleep(2)
            assert [request.code for request in world.kafka.replied] == [Code.UNAVAILABLE]

    run(check())


def test_a_pending_request_expires() -> None:
    async def check() -> None:
        async with World().started() as world:
            world.produce(world.request("1", source=KAFKA, in_s=5.0))
            await asyncio.sleep(6)
            assert [request.code for request in world.kafka.replied] == [Code.DEADLINE_EXCEEDED]

    run(check())


def test_a_new_revision_takes_over_what_waited_for_the_old_one_without_mixing() -> None:
    async def check() -> None:
        old = new_engine(slowness=1000.0)
        new = new_engine(description=replace(DESCRIPTION, address="new:1", model_revision="r2"))
        async with World(old).started() as world:
            assert world.pool.members is not None
            await world.occupy()
            waiting = world.request("3", "4", source=KAFKA)
            world.produce(waiting)
            await asyncio.sleep(0.001)
            world.pool.members.join(new, FakeTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(0.5)
            assert world.kafka.replied == [waiting]
            revisions = {outcome.batch.model_revision for outcome in waiting.outcomes if isinstance(outcome, Vector)}
            assert revisions == {"r2"}

    run(check())


def test_what_a_revision_decided_is_decided_anew_by_the_one_that_takes_over() -> None:
    async def check() -> None:
        old = new_engine(slowness=1000.0)
        wider = replace(DESCRIPTION, address="new:1", model_revision="r2", dimensions=8, normalizes=True)
        async with World(old).started() as world:
            assert world.pool.members is not None
            await world.occupy()
            waiting = world.request("3", source=KAFKA)
            world.produce(waiting)
            await asyncio.sleep(0.001)
            world.pool.members.join(new_engine(description=wider), FakeTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(0.5)
            assert waiting.code is Code.OK
            assert (waiting.options.dimensions, waiting.options.normalize) == (8, True)

    run(check())


def test_a_server_that_comes_back_under_its_revision_with_other_limits_is_taken_at_its_word() -> None:
    async def check() -> None:
        old = new_engine()
        async with World(old).started() as world:
            assert world.pool.members is not None
            assert (await world.embed("1 " * 40)).code is Code.OUT_OF_RANGE
            world.pool.members.leave(old)
            waiting = world.request("1 " * 40, source=KAFKA)
            world.produce(waiting)
            await asyncio.sleep(0.001)
            longer = new_engine(
                description=replace(DESCRIPTION, instance_id="2", max_input_tokens=64, step_query_capacity=1)
            )
            world.pool.members.join(longer, FakeTokenizer())
            assert (await world.embed("1 " * 40)).code is Code.OK
            await asyncio.gather(*(world.embed(str(number)) for number in range(10)))
            assert {batch.query_count for batch in longer.batches} == {1}
            assert world.model.admission.total == 0

    run(check())


def test_what_fails_at_a_revision_that_was_taken_over_goes_to_the_new_one() -> None:
    async def check() -> None:
        old = new_engine(slowness=1000.0, failures=[ModelServerLost("gone"), ModelServerLost("gone")])
        new = new_engine(description=replace(DESCRIPTION, address="new:1", model_revision="r2"))
        async with World(old).started() as world:
            assert world.pool.members is not None
            under_way = await world.occupy()
            world.pool.members.join(new, FakeTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(10)
            assert {request.code for request in world.kafka.replied} == {Code.OK}
            assert sorted(map(id, world.kafka.replied)) == sorted(map(id, under_way))
            await world.drain()

    run(check())


def test_a_request_that_is_half_under_way_when_another_revision_takes_over_begins_anew() -> None:
    async def check() -> None:
        old = new_engine(slowness=100.0)
        new = new_engine(description=replace(DESCRIPTION, address="new:1", model_revision="r2"), slowness=300.0)
        async with World(old).started() as world:
            assert world.pool.members is not None
            request = world.request(*(f"{number} 1 1 1 1 1 1 1" for number in range(25)), source=KAFKA)
            world.produce(request)
            await asyncio.sleep(0.001)
            assert sum(batch.query_count for batch in old.batches) == 20
            world.pool.members.join(new, FakeTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(30)
            assert world.kafka.replied == [request]
            revisions = {outcome.batch.model_revision for outcome in request.outcomes if isinstance(outcome, Vector)}
            assert revisions == {"r2"}
            assert world.model.admission.total == 0
            await world.drain()

    run(check())


async def half_answered(world: World) -> Request:
    """A record's request with many inputs, some of which have their vectors."""
    request = world.request(*(f"{number} 1 1 1 1 1 1 1" for number in range(50)), source=KAFKA)
    world.produce(request)
    async with asyncio.timeout(60):
        while request.remaining == 50:  # noqa: ASYNC110 - nothing tells of a half
            await asyncio.sleep(0.01)
    return request


def test_a_request_that_is_half_answered_when_another_revision_takes_over_begins_anew() -> None:
    async def check() -> None:
        old = new_engine(slowness=100.0)
        new = new_engine(description=replace(DESCRIPTION, address="new:1", model_revision="r2"))
        async with World(old).started() as world:
            assert world.pool.members is not None
            request = await half_answered(world)
            world.pool.members.join(new, FakeTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(30)
            assert world.kafka.replied == [request]
            revisions = {outcome.batch.model_revision for outcome in request.outcomes if isinstance(outcome, Vector)}
            assert revisions == {"r2"}
            await world.drain()

    run(check())


def test_a_half_answered_request_whose_partition_is_revoked_is_not_begun_anew_by_another_revision() -> None:
    async def check() -> None:
        old = new_engine(slowness=100.0)
        new = new_engine(description=replace(DESCRIPTION, address="new:1", model_revision="r2"))
        async with World(old).started() as world:
            assert world.pool.members is not None
            request = await half_answered(world)
            old.failures += [ModelServerLost("gone"), ModelServerLost("gone")]
            world.pipeline.forget(lambda each: each is request)
            world.pool.members.join(new, FakeTokenizer())
            world.pool.members.leave(old)
            await asyncio.sleep(30)
            assert (world.kafka.replied, new.batches, world.model.admission.total) == ([], [], 0)
            await world.drain()

    run(check())


def test_a_request_whose_tokens_are_counted_while_another_revision_takes_over_goes_there() -> None:
    class Slow(FakeCounting):
        @override
        async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
            await asyncio.sleep(1)
            return await super().count(texts, long=long)

    async def check() -> None:
        old = new_engine()
        new = new_engine(description=replace(DESCRIPTION, address="new:1", model_revision="r2"))
        async with World(old).started() as world:
            assert world.pool.members is not None
            world.model.revisions["r1"].counting = Slow(FakeTokenizer())
            call = asyncio.create_task(world.embed("1", in_s=60))
            await asyncio.sleep(0.5)
            world.pool.members.join(new, FakeTokenizer())
            world.pool.members.leave(old)
            request = await call
            assert request.code is Code.OK
            assert new.batches
            assert not old.batches

    run(check())
