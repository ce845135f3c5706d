"""Work for callers who gave up ends soon, and holds its room until it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import psutil
import pytest
from typing_extensions import override

from aggregator.tokenizers.counting import Counting
from aggregator.tokenizers.tokenizer import TokenBatch
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.listening import listening, refused, tokenizer

MIB = 1024 * 1024
IDEOGRAPHS = "東京都千代田区" * (4 * MIB // 21)
KANA = "あいうえおかきくけこ" * (4 * MIB // 30 - 100)
"""Which the model's tokenizer joins: there is no place to cut."""


def asking(text: str, truncate: str = "TRUNCATE_END") -> pb.EmbedRequest:
    return pb.EmbedRequest(inputs=[pb.Input(text=text)], truncate=truncate)


@pytest.mark.parametrize("text", [IDEOGRAPHS[:-50], KANA], ids=["ideographs", "kana"])
@pytest.mark.parametrize("truncate", ["TRUNCATE_NONE", "TRUNCATE_START"])
async def test_texts_of_callers_who_gave_up_keep_nobody_waiting(text: str, truncate: str) -> None:
    process = psutil.Process()
    async with listening() as door:
        await door.stub.Embed(asking("rain"))
        before = process.memory_info().rss
        call = asking(text, truncate)
        calls = [door.stub.Embed(call) for _ in range(15)]  # as many as there is room for
        await asyncio.wait([asyncio.ensure_future(each.code()) for each in calls], timeout=2.0)
        for each in calls:
            each.cancel()
        await door.stub.Embed(asking("où est la gare " * 7000), timeout=60)  # it was answered after a minute and more
        cpu_s = process.cpu_times().user
        await asyncio.sleep(1.0)
        busy_s = process.cpu_times().user - cpu_s
        grown = process.memory_info().rss - before
    assert busy_s < 0.8  # of the processor in a second: nothing is tokenized any more
    assert grown < 400 * MIB


class SlowTokenizerCounting(Counting):
    """Takes a while for long texts, and goes on once it began."""

    def __init__(self) -> None:
        super().__init__(tokenizer())
        self.go_on = asyncio.Event()
        self.began = asyncio.Event()

    @override
    async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
        if long:
            self.began.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                await self.go_on.wait()
                raise
        return await super().count(texts, long=long)


async def test_a_call_holds_its_bytes_until_the_work_on_it_has_ended() -> None:
    async with listening(memory_bytes=2 * MIB) as door:
        [model_revision] = door.models.in_service()
        model_revision.counting = counting = SlowTokenizerCounting()
        long = asking("où est la gare " * 80_000)
        given_up = door.stub.Embed(long)
        await counting.began.wait()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await refused(door.stub.Embed(long), grpc.StatusCode.RESOURCE_EXHAUSTED)
        counting.go_on.set()
        await door.stub.Embed(asking("rain"))
        await door.stub.Embed(long)
