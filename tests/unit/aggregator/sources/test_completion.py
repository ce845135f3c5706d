"""Every request is completed once, given up or left, and frees what it held."""

from __future__ import annotations

import asyncio
import gc

from aggregator.errors import Code
from aggregator.request import request_of
from aggregator.scheduler.queue import QueuePolicy
from aggregator.scheduler.work_item import Priority, Query
from aggregator.sources.kafka.codec import record_of
from tests.fakes.clock import run
from tests.fakes.sources import KAFKA
from tests.fakes.world import MODEL, World, new_engine


def test_a_caller_that_goes_away_takes_its_inputs_out_of_the_queue() -> None:
    async def check() -> None:
        engine = new_engine(slowness=100.0)
        async with World(engine).started() as world:
            await world.occupy()
            call = asyncio.create_task(world.embed("3"))
            await asyncio.sleep(0.001)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await asyncio.sleep(10)
        assert sum(batch.query_count for batch in engine.batches) == 2
        assert world.model.admission.total == 0

    run(check())


def test_calls_that_were_answered_leave_nothing_to_the_collector_of_cycles() -> None:
    async def check() -> None:
        gc.collect()
        gc.disable()
        try:
            async with World(new_engine()).started() as world:
                answered = {(await world.embed(f"{number}")).request_id for number in range(50)}
                kept = {request_of(one).request_id for one in gc.get_objects() if isinstance(one, Query)}
        finally:
            gc.enable()
        assert len(answered) == 50
        assert len(kept & answered) <= 1  # the last one's batch may still be on its way out

    run(check())


def test_kafka_requests_are_completed_once_and_free_what_they_held() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            requests = [world.request(f"{number}", source=KAFKA) for number in range(50)]
            world.produce(*requests)
            await asyncio.sleep(5)
        assert sorted(map(id, world.kafka.replied)) == sorted(map(id, requests))
        assert world.model.admission.total == 0

    run(check())


def test_a_call_does_not_wait_for_the_reply_to_a_record_of_its_batch() -> None:
    async def check() -> None:
        async with World(new_engine(slowness=100.0)).started() as world:
            await world.occupy()
            world.produce(world.request("3", source=KAFKA))
            call = asyncio.create_task(world.embed("4"))
            world.kafka.delivering.clear()
            assert (await call).code is Code.OK
            await asyncio.sleep(10)
            assert not world.kafka.replied
            held = world.model.admission.total
            world.kafka.delivering.set()
            await world.drain()
            assert held == 3 * 3  # three tokens of each record, and none of the call

    run(check())


def test_above_the_bound_grpc_is_refused_and_kafka_topics_are_held_by_class() -> None:
    async def check() -> None:
        engine = new_engine(slowness=1000.0)
        async with World(engine, max_held_tokens=100).started() as world:
            world.produce(*(world.request("1", source=KAFKA) for _ in range(18)))
            await asyncio.sleep(0.01)
            assert world.kafka.paused(MODEL, Priority.BACKGROUND)
            assert not world.kafka.paused(MODEL, Priority.DEFAULT)
            calls = [asyncio.create_task(world.embed("1")) for _ in range(20)]
            done, _ = await asyncio.wait(calls, timeout=0.01)
            assert {call.result().code for call in done} == {Code.RESOURCE_EXHAUSTED}
            assert 1 <= len(done) <= 6
            assert world.kafka.paused(MODEL, Priority.DEFAULT)

    run(check())


def test_requests_of_a_partition_that_was_given_back_are_dropped() -> None:
    async def check() -> None:
        engine = new_engine(slowness=100.0)
        async with World(engine).started() as world:
            under_way = await world.occupy()
            world.produce(*(world.request("3", source=KAFKA) for _ in range(5)))
            await asyncio.sleep(0.001)
            world.pipeline.forget(lambda request: request not in under_way)
            await asyncio.sleep(10)
            assert world.kafka.replied == under_way
            assert world.model.admission.total == 0
            await world.drain()

    run(check())


def test_a_drain_finishes_what_was_taken_in() -> None:
    async def check() -> None:
        async with World(new_engine(slowness=50.0)).started() as world:
            world.produce(*(world.request(str(number), source=KAFKA) for number in range(100)))
            await asyncio.sleep(0.001)
            await world.drain()
            assert len(world.kafka.replied) == 100

    run(check())


def test_a_drain_leaves_what_no_server_can_do_to_the_next_reader() -> None:
    async def check() -> None:
        engine = new_engine(slowness=50.0)
        async with World(engine).started() as world:
            assert world.pool.members is not None
            world.pool.members.leave(engine)
            record = world.request("1", source=KAFKA)
            world.produce(record)
            await asyncio.sleep(1)
            began_s = asyncio.get_running_loop().time()
            await world.drain()
            assert asyncio.get_running_loop().time() - began_s < 1
            assert not world.kafka.replied
            assert not record_of(record).completed
            assert world.model.admission.total == 0

    run(check())


def test_an_input_that_holds_its_partitions_committed_offset_back_is_aged() -> None:
    async def check() -> None:
        engine = new_engine()
        async with World(engine, queue=QueuePolicy(max_wait_s=(1e9, 1e9, 1e9))).started() as world:
            stuck = world.request("7", source=KAFKA, priority="PRIORITY_BACKGROUND")
            flood = [world.request(f"{number} 1 1 1", source=KAFKA) for number in range(200)]
            world.kafka.stuck.append(stuck.origin)
            world.produce(stuck, *flood)
            await asyncio.sleep(5)
            assert world.kafka.replied.index(stuck) < 100

    run(check())
