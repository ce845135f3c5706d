"""The path of a request through the pipeline, in virtual time, among fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from typing_extensions import override

from aggregator.errors import Code
from aggregator.tokenizers.tokenizer import TokenBatch
from tests.support.fake_source import KAFKA
from tests.support.fake_tokenizer import FakeTokenizer
from tests.support.faked_pipeline import FakeCounting, FakedPipeline, new_engine, vectors
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
async def test_requests_that_cannot_be_queued_for_a_reason_nobody_thought_of_are_each_completed_once() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        faked.model.revisions["r1"].prompts = {}
        requests = [faked.request(text, source=KAFKA) for text in ("1", "2")]
        requests.append(faked.request("3", source=KAFKA, model="unknown"))
        faked.produce(*requests)
        call = await faked.embed("4")
        await faked.drain()
        assert [request.code for request in (call, *requests)] == [Code.INTERNAL] * 3 + [Code.NOT_FOUND]
        assert sorted(map(id, faked.kafka.replied)) == sorted(map(id, requests))


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


@in_virtual_time
async def test_a_text_that_takes_long_to_count_keeps_no_other_waiting() -> None:
    async with FakedPipeline(new_engine()).started() as faked:
        faked.model.revisions["r1"].counting = SlowForLong()
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
        faked.model.revisions["r1"].counting = counting = SlowForLong()
        request = faked.request(*("x" * 8000,) * 20)
        faked.grpc.batcher.add(request)
        await asyncio.sleep(7)
        assert len(counting.long_calls) == 2
        work = faked.pipeline.give_up(request)
        assert work is not None
        await asyncio.wait((work,))
        assert not request.inputs
        await asyncio.sleep(60)
        assert len(counting.long_calls) == 2
        assert faked.pipeline.give_up(request) is None
        await faked.drain()


@in_virtual_time
async def test_a_caller_that_goes_away_while_tokens_are_counted_leaves_each_other_its_own() -> None:
    class Slow(FakeCounting):
        @override
        async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
            await asyncio.sleep(1)
            return await super().count(texts, long=long)

    async with FakedPipeline(new_engine(slowness=20.0)).started() as faked:
        await faked.occupy()
        faked.model.revisions["r1"].counting = Slow(FakeTokenizer())
        gone, other = asyncio.create_task(faked.embed("100")), asyncio.create_task(faked.embed("200"))
        await asyncio.sleep(0.5)
        gone.cancel()
        assert vectors(await other)[0][0] == 1 + 200 + 2
