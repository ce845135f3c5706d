"""Every request is completed once, given up or left, and frees what it held."""

from __future__ import annotations

import asyncio
import gc

from aggregator.errors import Code
from aggregator.request.request import request_of
from aggregator.scheduler.work_item import Query
from aggregator.sources.kafka.codec import record_of
from tests.support.fake_source import KAFKA
from tests.support.faked_pipeline import FakedPipeline, new_engine
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_caller_that_goes_away_takes_its_inputs_out_of_the_queue() -> None:
    engine = new_engine(slowness=100.0)
    async with FakedPipeline(engine).started() as faked:
        await faked.occupy()
        call = asyncio.create_task(faked.embed("3"))
        await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(10)
    assert sum(batch.query_count for batch in engine.batches) == 2
    assert faked.model.admission.total == 0


@in_virtual_time
async def test_calls_that_were_answered_leave_nothing_to_the_collector_of_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        async with FakedPipeline(new_engine()).started() as faked:
            answered = {(await faked.embed(f"{number}")).request_id for number in range(50)}
            kept = {request_of(one).request_id for one in gc.get_objects() if isinstance(one, Query)}
    finally:
        gc.enable()
    assert len(answered) == 50
    assert len(kept & answered) <= 1  # the last one's batch may still be on its way out


@in_virtual_time
async def test_a_call_does_not_wait_for_the_reply_to_a_record_of_its_batch() -> None:
    async with FakedPipeline(new_engine(slowness=100.0)).started() as faked:
        await faked.occupy()
        faked.produce(faked.request("3", source=KAFKA))
        call = asyncio.create_task(faked.embed("4"))
        faked.kafka.delivering.clear()
        assert (await call).code is Code.OK
        await asyncio.sleep(10)
        assert not faked.kafka.replied
        held = faked.model.admission.total
        faked.kafka.delivering.set()
        await faked.drain()
        assert held == 3 * 3  # three tokens of each record, and none of the call


@in_virtual_time
async def test_requests_of_a_partition_that_was_given_back_are_dropped() -> None:
    engine = new_engine(slowness=100.0)
    async with FakedPipeline(engine).started() as faked:
        under_way = await faked.occupy()
        faked.produce(*(faked.request("3", source=KAFKA) for _ in range(5)))
        await asyncio.sleep(0.001)
        faked.pipeline.forget(lambda request: request not in under_way)
        await asyncio.sleep(10)
        assert faked.kafka.replied == under_way
        assert faked.model.admission.total == 0
        await faked.drain()


@in_virtual_time
async def test_a_drain_leaves_what_no_server_can_do_to_the_next_reader() -> None:
    engine = new_engine(slowness=50.0)
    async with FakedPipeline(engine).started() as faked:
        assert faked.pool.members is not None
        faked.pool.members.leave(engine)
        record = faked.request("1", source=KAFKA)
        faked.produce(record)
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await faked.drain()
        assert asyncio.get_running_loop().time() - began_s < 1
        assert not faked.kafka.replied
        assert not record_of(record).completed
        assert faked.model.admission.total == 0
