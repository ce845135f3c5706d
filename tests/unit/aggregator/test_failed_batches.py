"""Batches that fail go again, elsewhere or apart, until only what breaks the engine has failed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from typing_extensions import override

from aggregator.errors import Code, EngineFailed, ModelServerBusy, ModelServerLost, ModelServerTimedOut
from aggregator.model_server import OutgoingBatch, StepResult
from aggregator.request.request import Failure
from tests.support.fake_engine import FakeEngine
from tests.support.fake_source import KAFKA
from tests.support.faked_pipeline import DESCRIPTION, FakedPipeline, new_engine
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_lost_servers_batch_is_answered_by_another_and_it_is_suspect() -> None:
    first = new_engine(failures=[ModelServerLost("gone")])
    second = new_engine(description=replace(DESCRIPTION, address="server-2:1"), slowness=3.0)
    async with FakedPipeline(first, second).started() as faked:
        request = await faked.embed("1 2 3")
        assert request.code is Code.OK
        assert faked.pool.suspects == [first]
        assert second.batches[0].attempt == 1


@in_virtual_time
async def test_a_busy_server_costs_no_attempt() -> None:
    engine = new_engine(failures=[ModelServerBusy("full")] * 5)
    async with FakedPipeline(engine).started() as faked:
        request = await faked.embed("1")
    assert request.code is Code.OK
    assert {batch.attempt for batch in engine.batches} == {0}


@in_virtual_time
async def test_what_failed_twice_asks_to_be_run_alone() -> None:
    engine = new_engine(poison=frozenset({666}))
    async with FakedPipeline(engine).started() as faked:
        await asyncio.gather(*(faked.embed(text) for text in ("1", "2", "666", "4")))
    assert {batch.isolate for batch in engine.batches if batch.attempt < 2} == {False}
    assert {batch.isolate for batch in engine.batches if batch.attempt >= 2} == {True}


@in_virtual_time
async def test_an_engine_that_hangs_on_large_batches_answers_in_smaller_ones() -> None:
    class Hanging(FakeEngine):
        @override
        async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
            if batch.query_count > 2:
                await asyncio.sleep(timeout_s)
                raise ModelServerTimedOut("DEADLINE_EXCEEDED")
            return await super().embed(batch, timeout_s=timeout_s)

    async with FakedPipeline(Hanging(DESCRIPTION)).started() as faked:
        asked = [asyncio.create_task(faked.embed(str(number))) for number in range(40)]
        requests = await asyncio.gather(*asked)
    assert {request.code for request in requests} == {Code.OK}


@in_virtual_time
async def test_an_error_for_one_query_of_a_batch_reaches_that_query_only() -> None:
    class Choosy(FakeEngine):
        @override
        async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
            result = await super().embed(batch, timeout_s=timeout_s)
            return replace(result, errors=[(0, int(Code.INVALID_ARGUMENT), "id out of vocabulary")])

    async with FakedPipeline(Choosy(DESCRIPTION)).started() as faked:
        request = await faked.embed("1", "2")
    outcomes = request.outcomes
    assert isinstance(outcomes[0], Failure)
    assert not isinstance(outcomes[1], Failure)


@in_virtual_time
async def test_an_engine_that_fails_for_all_condemns_none_and_answers_once_well() -> None:
    failures = [EngineFailed("broken") for _ in range(1000)]
    async with FakedPipeline(new_engine(failures=failures)).started() as faked:
        faked.produce(*(faked.request(str(number), source=KAFKA) for number in range(8)))
        await asyncio.sleep(60)
        assert faked.kafka.replied == []
        failures.clear()
        await asyncio.sleep(60)
        assert [request.code for request in faked.kafka.replied] == [Code.OK] * 8
