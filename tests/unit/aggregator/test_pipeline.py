"""The path of a request through the pipeline, in virtual time, among fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from typing_extensions import override

from aggregator.admission.tokenizers.tokenizer import TokenBatch
from aggregator.errors import Code
from aggregator.replicas.results import Vector
from aggregator.request import Request
from tests.fakes.clock import run
from tests.fakes.sources import KAFKA
from tests.fakes.tokenizers import FakeTokenizer
from tests.fakes.world import FakeCounting, World, new_engine, vectors


def test_a_call_gets_the_vector_of_its_own_text() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            requests = await asyncio.gather(*(world.embed(f"{number} 10") for number in range(20)))
        assert [vectors(request) for request in requests] == [[[number + 13.0, 4.0, 3.0, 4.0]] for number in range(20)]

    run(check())


def test_every_input_of_a_request_is_answered_in_its_place() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
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
        engine = new_engine()
        async with World(engine).started() as world:
            await asyncio.gather(*(world.embed(" ".join([str(number)] * (1 + number % 9))) for number in range(300)))
        assert max(batch.token_count for batch in engine.batches) <= 100
        assert sum(batch.token_count for batch in engine.batches[1:-1]) / (100 * len(engine.batches[1:-1])) > 0.9

    run(check())


def test_identical_inputs_are_computed_once_and_each_is_answered() -> None:
    async def check() -> None:
        engine = new_engine()
        async with World(engine).started() as world:
            await world.embed("1")
            requests = await asyncio.gather(world.embed("1 1 1"), *(world.embed("9 9") for _ in range(5)))
        assert all(vectors(request) == [[21.0, 4.0, 3.0, 4.0]] for request in requests[1:])
        assert sum(batch.query_count for batch in engine.batches) == 3

    run(check())


def test_an_over_long_text_is_cut_where_the_request_allows_it() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            request = await world.embed("5 " * 40, truncate="TRUNCATE_END")
        assert vectors(request)[0][1] == 32

    run(check())


def test_a_text_that_the_tokenizer_cannot_take_harms_only_itself() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            world.produce(*(world.request(text, source=KAFKA) for text in ("10", "uncountable", "20")))
            await asyncio.sleep(1)
        codes = sorted(request.code.name for request in world.kafka.replied)
        assert codes == ["INVALID_ARGUMENT", "OK", "OK"]

    run(check())


def test_requests_that_cannot_be_queued_for_a_reason_nobody_thought_of_are_each_completed_once() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            world.model.revisions["r1"].prompts = {}
            requests = [world.request(text, source=KAFKA) for text in ("1", "2")]
            requests.append(world.request("3", source=KAFKA, model="unknown"))
            world.produce(*requests)
            call = await world.embed("4")
            await world.drain()
            assert [request.code for request in (call, *requests)] == [Code.INTERNAL] * 3 + [Code.NOT_FOUND]
            assert sorted(map(id, world.kafka.replied)) == sorted(map(id, requests))

    run(check())


def test_a_deadline_fires_while_queued_although_nothing_is_popped() -> None:
    async def check() -> float:
        async with World(new_engine(slowness=1000.0)).started() as world:
            await world.occupy()
            started_s = asyncio.get_running_loop().time()
            request = await world.embed("3", in_s=0.5)
            assert request.code is Code.DEADLINE_EXCEEDED
            return asyncio.get_running_loop().time() - started_s

    assert abs(run(check()) - 0.5) < 0.01


class SlowForLong(FakeCounting):
    """Takes 5 s for a call with long texts."""

    def __init__(self) -> None:
        super().__init__(FakeTokenizer())
        self.long_calls: list[int] = []

    @override
    async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
        if long:
            self.long_calls.append(sum(map(len, texts)))
            await asyncio.sleep(5)
        return await super().count(texts, long=long)


def test_a_text_that_takes_long_to_count_keeps_no_other_waiting() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            world.model.revisions["r1"].counting = SlowForLong()
            texts = ("1 " * 50_000, "2", "3")
            requests = [world.request(text, source=KAFKA, truncate="TRUNCATE_END") for text in texts]
            world.produce(requests[0], large=True)
            world.produce(*requests[1:])
            call = asyncio.create_task(world.embed("4", in_s=1))
            await asyncio.sleep(0.5)
            assert world.kafka.replied == requests[1:]
            assert (await call).code is Code.OK
            await asyncio.sleep(6)
            assert {request.code for request in world.kafka.replied} == {Code.OK}
            await world.drain()
            assert world.model.admission.total == 0

    run(check())


def test_a_long_text_is_no_longer_counted_once_its_caller_has_gone() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            world.model.revisions["r1"].counting = counting = SlowForLong()
            request = world.request(*("x" * 8000,) * 20)
            world.grpc.batcher.add(request)
            await asyncio.sleep(7)
            assert len(counting.long_calls) == 2
            work = world.pipeline.give_up(request)
            assert work is not None
            await asyncio.wait((work,))
            assert not request.inputs
            await asyncio.sleep(60)
            assert len(counting.long_calls) == 2
            assert world.pipeline.give_up(request) is None
            await world.drain()

    run(check())


def test_of_an_over_long_text_no_more_is_counted_than_can_matter() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            world.model.revisions["r1"].counting = counting = SlowForLong()
            text = "9 " * 100_000
            for truncate, tokens in (("TRUNCATE_END", 32), ("TRUNCATE_START", 32), ("TRUNCATE_NONE", 0)):
                request = await world.embed(text, truncate=truncate)
                if tokens:
                    assert vectors(request)[0][1] == tokens
                else:
                    assert (request.code, request.failure and request.failure.message.partition(":")[0]) == (
                        Code.OUT_OF_RANGE,
                        "more than 32 tokens",
                    )
            assert all(characters <= 8 * 32 for characters in counting.long_calls)

    run(check())


@pytest.mark.parametrize(
    ("words", "truncate", "found"),
    [
        (30, "TRUNCATE_NONE", (sum(range(30)) + 3, 32)),
        (40, "TRUNCATE_NONE", None),
        (40, "TRUNCATE_END", (sum(range(30)) + 3, 32)),
        (40, "TRUNCATE_START", (sum(range(10, 40)) + 3, 32)),
    ],
)
def test_a_long_text_with_few_tokens_is_read_as_far_as_the_model_takes_it(
    words: int, truncate: str, found: tuple[int, int] | None
) -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            request = await world.embed(" ".join(f"{number:04000}" for number in range(words)), truncate=truncate)
            if found:
                assert tuple(vectors(request)[0][:2]) == found
            else:
                assert request.failure is not None
                assert request.failure.message.startswith("more than 32 tokens")

    run(check())


@pytest.mark.parametrize(
    ("text", "read", "told"),
    [
        ("x" * 100_000, [1 << 16], "more than 65536 characters, of which no more are read"),  # nowhere to be cut
        ("9 " * 9 + "x" * 100_000, [17, 1 << 16], "more than 65553 characters, of which no more are read"),
        ("9 " * 20 + " " * 100_000, [256, 1 << 16, 34_248], ""),  # there is little in it, but it is read whole
    ],
)
def test_a_text_that_says_little_in_many_characters_is_read_up_to_a_bound(
    text: str, read: list[int], told: str
) -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            world.model.revisions["r1"].counting = counting = SlowForLong()
            request = await world.embed(text)
            assert [pytest.approx(characters, abs=2) for characters in counting.long_calls] == read
            assert request.code is (Code.OUT_OF_RANGE if told else Code.OK)
            assert not told or (request.failure and request.failure.message.startswith(told))
            assert (await world.embed(text, truncate="TRUNCATE_END")).code is Code.OK

    run(check())


def test_a_caller_that_goes_away_while_tokens_are_counted_leaves_each_other_its_own() -> None:
    class Slow(FakeCounting):
        @override
        async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
            await asyncio.sleep(1)
            return await super().count(texts, long=long)

    async def check() -> None:
        async with World(new_engine(slowness=20.0)).started() as world:
            await world.occupy()
            world.model.revisions["r1"].counting = Slow(FakeTokenizer())
            gone, other = asyncio.create_task(world.embed("100")), asyncio.create_task(world.embed("200"))
            await asyncio.sleep(0.5)
            gone.cancel()
            assert vectors(await other)[0][0] == 1 + 200 + 2

    run(check())


def test_many_texts_that_come_together_are_counted_in_calls_between_which_others_are_sent() -> None:
    async def check() -> None:
        async with World(new_engine()).started() as world:
            world.model.revisions["r1"].counting = counting = NotingCounting()
            requests = [world.request("1 " * 8000, source=KAFKA, truncate="TRUNCATE_END") for _ in range(40)]
            world.produce(*requests)
            await asyncio.sleep(1)
            assert {request.code for request in world.kafka.replied} == {Code.OK}
            assert counting.counts == [4] * 10

    run(check())


class NotingCounting(FakeCounting):
    """Notes how many texts each count had."""

    def __init__(self) -> None:
        super().__init__(FakeTokenizer())
        self.counts: list[int] = []

    @override
    async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
        self.counts.append(len(texts))
        return await super().count(texts, long=long)


def test_calls_that_come_while_no_server_could_take_them_are_admitted_together() -> None:
    async def check() -> None:
        async with World(new_engine(slowness=20.0)).started() as world:
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
        engine = new_engine()
        async with World(engine).started() as world:
            started_s = asyncio.get_running_loop().time()
            request = await world.embed("1")
            [outcome] = request.outcomes
            assert isinstance(outcome, Vector)
            took_s = asyncio.get_running_loop().time() - started_s
            assert took_s - outcome.batch.inference_s < 1e-6

    run(check())
