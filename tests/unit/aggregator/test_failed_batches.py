"""Batches that fail go again, elsewhere or apart, until only what breaks the engine has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from typing_extensions import override

from aggregator.errors import Code, EngineFailed, ModelServerBusy, ModelServerLost, ModelServerTimedOut
from aggregator.model_server import OutgoingBatch, StepResult
from aggregator.request.request import Request
from aggregator.scheduler.retries import RetryPolicy
from tests.support.fake_engine import FakeEngine
from tests.support.fake_source import KAFKA
from tests.support.faked_pipeline import DESCRIPTION, FakedPipeline, new_engine, vectors
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


@dataclass(eq=False)
class Liar(FakeEngine):
    """Says an error of each query for whose ids `lies` holds."""

    lies: Callable[[list[int]], bool] = field(default=lambda _: True)
    code: Code = Code.INTERNAL

    @override
    async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
        result = await super().embed(batch, timeout_s=timeout_s)
        ids, ends = np.frombuffer(batch.token_ids, "<i4"), np.cumsum(np.frombuffer(batch.lengths, "<i4"))[:-1]
        wrong = [place for place, query in enumerate(np.split(ids, ends)) if self.lies(query.tolist())]
        return replace(result, errors=[(place, int(self.code), "it says") for place in wrong])


SECOND = replace(DESCRIPTION, address="server-2:1")


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
@in_virtual_time
async def test_no_word_of_one_server_condemns_a_query_that_another_computes(code: Code) -> None:
    liar = Liar(DESCRIPTION, code=code, lies=lambda ids: 7 in ids)
    other = FakeEngine(SECOND, slowness=3.0)
    async with FakedPipeline(liar, other).started() as faked:
        request = await faked.embed("1", "7", "3")
    assert vectors(request) == vectors(await once_well("1", "7", "3"))
    assert [batch.query_count for batch in other.batches] == [1]
    assert [batch.attempt for batch in other.batches] == [1]


async def once_well(*texts: str) -> Request:
    async with FakedPipeline(new_engine()).started() as faked:
        return await faked.embed(*texts)


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.OUT_OF_RANGE])
@in_virtual_time
async def test_a_query_that_fails_everywhere_is_dead_lettered_alone(code: Code) -> None:
    engines = [Liar(each, code=code, lies=lambda ids: 666 in ids) for each in (DESCRIPTION, SECOND)]
    async with FakedPipeline(*engines).started() as faked:
        requests = await asyncio.gather(*(faked.embed(text) for text in ("1", "666", "3", "4")))
        assert [request.code for request in requests] == [Code.OK, code, Code.OK, Code.OK]
        failure = requests[1].failure
        assert failure is not None
        assert failure.message.endswith("it says")
        assert failure.attempts > RetryPolicy().proofs
        assert faked.pool.suspects == []


@in_virtual_time
async def test_a_server_that_lies_is_withdrawn_after_eight_batches() -> None:
    liar = Liar(DESCRIPTION)
    async with FakedPipeline(liar, FakeEngine(SECOND)).started() as faked:
        for number in range(60):
            assert (await faked.embed(str(number))).code is Code.OK
            if faked.pool.suspects:
                break
            await asyncio.sleep(0.01)
        assert faked.pool.suspects == [liar]
        assert RetryPolicy().blames <= len(liar.batches) <= 2 * RetryPolicy().blames


@in_virtual_time
async def test_a_lone_server_that_lies_condemns_none() -> None:
    liar = Liar(DESCRIPTION)
    async with FakedPipeline(liar).started() as faked:
        faked.produce(*(faked.request(str(number), source=KAFKA) for number in range(8)))
        await asyncio.sleep(60)
        assert faked.kafka.replied == []
        assert liar in faked.pool.suspects
        liar.lies = lambda _: False
        await asyncio.sleep(60)
        assert [request.code for request in faked.kafka.replied] == [Code.OK] * 8


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
