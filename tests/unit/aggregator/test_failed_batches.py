"""Batches that fail go again, elsewhere or apart, until only what breaks the engine has failed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from typing_extensions import override

from aggregator.errors import Code, EngineFailed, ModelServerBusy, ModelServerLost
from aggregator.replicas.engine import OutgoingBatch, StepResult
from aggregator.request import Failure
from tests.fakes.clock import run
from tests.fakes.engines import FakeEngine
from tests.fakes.sources import KAFKA
from tests.fakes.world import DESCRIPTION, World, new_engine


def test_a_batch_whose_server_is_lost_is_answered_by_another_and_the_server_is_suspect() -> None:
    async def check() -> None:
        first = new_engine(failures=[ModelServerLost("gone")])
        second = new_engine(description=replace(DESCRIPTION, address="server-2:1"), slowness=3.0)
        async with World(first, second).started() as world:
            request = await world.embed("1 2 3")
            assert request.code is Code.OK
            assert world.pool.suspects == [first]
            assert second.batches[0].attempt == 1

    run(check())


def test_a_busy_server_costs_no_attempt() -> None:
    async def check() -> None:
        engine = new_engine(failures=[ModelServerBusy("full")] * 5)
        async with World(engine).started() as world:
            request = await world.embed("1")
        assert request.code is Code.OK
        assert {batch.attempt for batch in engine.batches} == {0}

    run(check())


def test_one_poison_fails_alone_its_batch_mates_are_answered_and_it_is_quarantined() -> None:
    async def check() -> None:
        engines = [
            new_engine(poison=frozenset({666})),
            new_engine(description=replace(DESCRIPTION, address="b:1"), poison=frozenset({666})),
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


def test_a_batch_that_is_sent_again_says_which_attempt_it_is() -> None:
    async def check() -> None:
        engine = new_engine(failures=[EngineFailed("broken")] * 2)
        async with World(engine).started() as world:
            assert (await world.embed("1 2 3")).code is Code.OK
        assert [batch.attempt for batch in engine.batches] == [0, 1, 2]

    run(check())


def test_what_failed_twice_asks_to_be_run_alone() -> None:
    async def check() -> None:
        engine = new_engine(poison=frozenset({666}))
        async with World(engine).started() as world:
            await asyncio.gather(*(world.embed(text) for text in ("1", "2", "666", "4")))
        assert {batch.isolate for batch in engine.batches if batch.attempt < 2} == {False}
        assert {batch.isolate for batch in engine.batches if batch.attempt >= 2} == {True}

    run(check())


def test_an_error_for_one_query_of_a_batch_reaches_that_query_only() -> None:
    class Choosy(FakeEngine):
        @override
        async def embed(self, batch: OutgoingBatch, *, timeout_s: float) -> StepResult:
            result = await super().embed(batch, timeout_s=timeout_s)
            return replace(result, errors=[(0, int(Code.INVALID_ARGUMENT), "id out of vocabulary")])

    async def check() -> None:
        async with World(Choosy(DESCRIPTION)).started() as world:
            request = await world.embed("1", "2")
        outcomes = request.outcomes
        assert isinstance(outcomes[0], Failure)
        assert not isinstance(outcomes[1], Failure)

    run(check())


def test_an_engine_that_fails_for_everybody_ends_in_dead_letters_not_in_a_loop() -> None:
    async def check() -> None:
        engine = new_engine(failures=[EngineFailed("broken")] * 1000)
        async with World(engine).started() as world:
            world.produce(*(world.request(str(number), source=KAFKA) for number in range(8)))
            await asyncio.sleep(60)
            assert {request.code for request in world.kafka.replied} == {Code.INTERNAL}
            assert len(world.kafka.replied) == 8

    run(check())
