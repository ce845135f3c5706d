"""The path of a request through the pipeline, in virtual time, among fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from typing_extensions import override

from aggregator.core.query import Source
from aggregator.errors import Code
from aggregator.ports import TokenBatch
from aggregator.request import Request
from aggregator.vectors import Vector
from tests.fakes.clock import run
from tests.fakes.world import FakeCounting, SerialEngine, WordTokenizer, World, vectors


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


def test_a_deadline_fires_while_queued_although_nothing_is_popped() -> None:
    async def check() -> float:
        async with World(SerialEngine(slowness=1000.0)).started() as world:
            await world.occupy()
            started_s = asyncio.get_running_loop().time()
            request = await world.embed("3", in_s=0.5)
            assert request.code is Code.DEADLINE_EXCEEDED
            return asyncio.get_running_loop().time() - started_s

    assert abs(run(check()) - 0.5) < 0.01


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
            await world.occupy()
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
