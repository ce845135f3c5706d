from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from typing_extensions import override

from aggregator.tokenizers.counting import Counting
from aggregator.tokenizers.tokenizer import TokenBatch
from tests.support.fake_tokenizer import FakeTokenizer


class GatedTokenizer(FakeTokenizer):
    """Holds each call until the test opens the gate, and refuses the word "poison"."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.threads: set[str] = set()

    @override
    def count(self, texts: Sequence[str]) -> TokenBatch:
        assert self.gate.wait(60)
        self.threads.add(threading.current_thread().name)
        counted = super().count(texts)
        if "poison" in texts:
            raise ValueError("poison")
        return counted


def ids_of(*texts: str) -> list[int]:
    return [int(token) for text in texts for token in FakeTokenizer.ids(text)]


async def started(counting: Counting, *groups: Sequence[str]) -> list[asyncio.Task[TokenBatch]]:
    tasks = [asyncio.create_task(counting.count(texts)) for texts in groups]
    await asyncio.sleep(0)
    return tasks


async def test_texts_that_come_while_a_call_runs_go_together_in_the_next() -> None:
    tokenizer = GatedTokenizer()
    counting = Counting(tokenizer)
    tasks = await started(counting, ["a"], ["b c"], ["d", "e"], [])
    tokenizer.gate.set()
    counted = await asyncio.gather(*tasks)
    assert tokenizer.calls == [("a",), ("b c", "d", "e")]
    assert [batch.ids.tolist() for batch in counted] == [ids_of("a"), ids_of("b c"), ids_of("d", "e"), []]
    assert [batch.lengths.tolist() for batch in counted] == [[3], [4], [3, 3], []]


async def test_the_event_loop_is_left_alone_and_the_worker_may_be_shared() -> None:
    tokenizer = GatedTokenizer()
    tokenizer.gate.set()
    with ThreadPoolExecutor(1, "worker") as worker:
        await Counting(tokenizer, worker).count(["a"])
    assert tokenizer.threads == {"worker_0"}


async def test_a_call_takes_at_most_its_limit_of_characters_or_one_caller() -> None:
    tokenizer = GatedTokenizer()
    counting = Counting(tokenizer, max_call_characters=10)
    tasks = await started(counting, ["first"], ["x" * 50], ["aaaa", "bbbb"], ["cc"], ["d"])
    tokenizer.gate.set()
    await asyncio.gather(*tasks)
    assert tokenizer.calls == [("first",), ("x" * 50,), ("aaaa", "bbbb", "cc"), ("d",)]


async def test_a_text_finds_the_tokenizer_idle_beside_a_long_one() -> None:
    class Slow(FakeTokenizer):
        gate = threading.Event()

        @override
        def count(self, texts: Sequence[str]) -> TokenBatch:
            assert "long" not in texts or self.gate.wait(60)
            return super().count(texts)

    counting = Counting(Slow())
    long = asyncio.create_task(counting.count(["long"], long=True))
    await asyncio.sleep(0)
    assert (await counting.count(["a"])).lengths.tolist() == [3]
    assert not long.done()
    Slow.gate.set()
    assert (await long).lengths.tolist() == [3]


async def test_a_failing_text_fails_its_own_caller_only() -> None:
    tokenizer = GatedTokenizer()
    counting = Counting(tokenizer)
    tasks = await started(counting, ["first"], ["a"], ["poison"], ["b"])
    tokenizer.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[2], ValueError)
    assert [result.ids.tolist() for result in results if isinstance(result, TokenBatch)] == [
        ids_of("first"),
        ids_of("a"),
        ids_of("b"),
    ]
    with pytest.raises(ValueError, match="poison"):
        await counting.count(["poison"])
    assert (await counting.count(["after"])).ids.tolist() == ids_of("after")


async def test_a_caller_that_gave_up_is_not_counted_and_holds_nobody_up() -> None:
    tokenizer = GatedTokenizer()
    counting = Counting(tokenizer)
    running, waiting, other = await started(counting, ["running"], ["gone"], ["other"])
    running.cancel()
    waiting.cancel()
    await asyncio.sleep(0)
    tokenizer.gate.set()
    assert (await other).ids.tolist() == ids_of("other")
    assert tokenizer.calls == [("running",), ("other",)]


async def test_a_few_characters_are_counted_at_once_if_the_tokenizer_is_idle() -> None:
    tokenizer = GatedTokenizer()
    tokenizer.gate.set()
    counting = Counting(tokenizer, inline_characters=8)
    await counting.count(["a b c"])
    assert tokenizer.threads == {threading.current_thread().name}
    await counting.count(["a b", "c d e f"])
    assert len(tokenizer.threads) == 2
    tokenizer.gate.clear()
    tasks = await started(counting, ["a b c d e"], ["f"])
    tokenizer.gate.set()
    await asyncio.gather(*tasks)
    assert tokenizer.calls[2:] == [("a b c d e",), ("f",)]
