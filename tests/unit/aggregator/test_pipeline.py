"""The path of a request through the pipeline among fakes: it is completed once, and frees what it held."""

from __future__ import annotations

import asyncio
import gc

from aggregator.errors import Code
from aggregator.scheduler.work_item import Query
from aggregator.sources.kafka.decode import record_of
from tests.support.fake_source import KAFKA, FakeSource
from tests.support.faked_pipeline import FakedPipeline, SlowCounting, new_engine, vectors
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_every_input_of_a_request_is_answered_in_its_place() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        request = await faked.embed("10", "", "20 30", "x " * 40)
    assert vectors(request) == [
        [13.0, 3.0, 3.0, 4.0],
        "INVALID_ARGUMENT",
        [53.0, 4.0, 3.0, 4.0],
        "OUT_OF_RANGE",
    ]


@in_virtual_time
async def test_a_text_that_the_tokenizer_cannot_take_harms_only_itself() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        faked.produce(*(faked.request(text, source=KAFKA) for text in ("10", "uncountable", "20")))
        await asyncio.sleep(1)
    codes = sorted(request.code.name for request in faked.kafka.replied)
    assert codes == ["INVALID_ARGUMENT", "OK", "OK"]


@in_virtual_time
async def test_requests_that_an_unforeseen_fault_keeps_out_are_completed_once() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        faked.embeds.revisions["r1"].prompts = {}
        requests = [faked.request(text, source=KAFKA) for text in ("1", "2")]
        requests.append(faked.request("3", source=KAFKA, model="unknown"))
        faked.produce(*requests)
        call = await faked.embed("4")
        await faked.drain()
        assert [request.code for request in (call, *requests)] == [Code.INTERNAL] * 3 + [Code.NOT_FOUND]
        assert sorted(map(id, faked.kafka.replied)) == sorted(map(id, requests))


@in_virtual_time
async def test_a_text_that_takes_long_to_count_keeps_no_other_waiting() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        faked.embeds.revisions["r1"].counting = SlowCounting(5.0, only_long=True)
        texts = ("1 " * 50_000, "2", "3")
        requests = [faked.request(text, source=KAFKA, truncate="TRUNCATE_END") for text in texts]
        faked.produce(requests[0], large=True)
        faked.produce(*requests[1:])
        call = asyncio.create_task(faked.embed("4", in_s=1))
        await asyncio.sleep(0.5)
        assert faked.kafka.replied == requests[1:]
        assert (await call).code is Code.OK
        await asyncio.sleep(6)
        assert {request.code for request in faked.kafka.replied} == {Code.OK}
        await faked.drain()
        assert faked.model.admission.total == 0


@in_virtual_time
async def test_a_long_text_is_no_longer_counted_once_its_caller_has_gone() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        faked.embeds.revisions["r1"].counting = counting = SlowCounting(5.0, only_long=True)
        request = faked.request(*("x" * 8000,) * 20)
        faked.grpc.batcher.add(request)
        await asyncio.sleep(7)
        assert counting.begun == 2
        work = faked.pipeline.give_up(request)
        assert work is not None
        await asyncio.wait((work,))
        assert not request.inputs
        await asyncio.sleep(60)
        assert counting.begun == 2
        assert faked.pipeline.give_up(request) is None
        await faked.drain()


@in_virtual_time
async def test_a_caller_that_leaves_during_token_counts_leaves_others_their_own() -> None:
    async with FakedPipeline(new_engine(slowness=20.0)).started() as faked:
        await faked.occupy()
        faked.embeds.revisions["r1"].counting = SlowCounting(1.0)
        gone, other = asyncio.create_task(faked.embed("100")), asyncio.create_task(faked.embed("200"))
        await asyncio.sleep(0.5)
        gone.cancel()
        assert vectors(await other)[0][0] == 1 + 200 + 2


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
async def test_answered_calls_leave_nothing_to_the_collector_of_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        async with FakedPipeline(new_engine()).started() as faked:
            answered = {(await faked.embed(f"{number}")).request_id for number in range(50)}
            kept = {one.request.request_id for one in gc.get_objects() if type(one) is Query}
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
        faked.members.leave(engine)
        record = faked.request("1", source=KAFKA)
        faked.produce(record)
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await faked.drain()
        assert asyncio.get_running_loop().time() - began_s < 1
        assert not faked.kafka.replied
        assert not record_of(record).completed
        assert faked.model.admission.total == 0


@in_virtual_time
async def test_no_request_waits_for_the_reply_to_a_refused_one() -> None:
    engine = new_engine()
    async with FakedPipeline(engine).started() as faked:
        faked.kafka.delivering.clear()
        faked.produce(faked.request("1", source=KAFKA, model="unknown"))
        for _ in range(5):
            await asyncio.sleep(1)
            faked.produce(faked.request("2", source=KAFKA))
        await asyncio.sleep(1)
        assert sum(batch.query_count for batch in engine.batches) == 5
        faked.kafka.delivering.set()
        await faked.drain()
        assert [request.code for request in faked.kafka.replied].count(Code.OK) == 5


@in_virtual_time
async def test_replies_through_one_broker_do_not_wait_for_another_broker() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        replied: list[str] = []
        redis = FakeSource("redis", refusable=False, on_reply=lambda _: replied.append("redis"))
        calls = FakeSource("calls", refusable=True, on_reply=lambda _: replied.append("calls"))
        faked.kafka.delivering.clear()
        requests = [faked.request("1", source=KAFKA, model="unknown") for _ in range(3)]
        requests[1].source, requests[2].source = redis, calls
        faked.produce(*requests)
        await asyncio.sleep(1)
        assert replied == ["calls", "redis"]
        assert not faked.kafka.replied
        faked.kafka.delivering.set()
        await faked.drain()
        assert faked.kafka.replied == requests[:1]
