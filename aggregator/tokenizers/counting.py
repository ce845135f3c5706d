"""Tokenize off the event loop: texts that arrive during one tokenizer call form the next call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from aggregator.slow_lane import SLOW_LANE
from aggregator.tokenizers.tokenizer import TokenBatch, Tokenizer

CALL_CHARACTERS = 1 << 16
"""The most characters of one tokenizer call: others get in between, and a cancellation takes effect soon."""
INLINE_CHARACTERS = 2048
"""Up to this many characters are tokenized in less time than a change of threads takes."""


@dataclass(frozen=True, slots=True)
class _Caller:
    texts: Sequence[str]
    characters: int
    answer: asyncio.Future[TokenBatch]


class Counting:
    """Token counts off the event loop; long texts in the slow lane, so that short ones do not wait for them.

    Work-conserving: a text that finds the tokenizer idle is tokenized at once; texts that arrive meanwhile form one
    call after it. The limits on requests in flight bound the texts that wait here.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        worker: Executor | None = None,
        *,
        max_call_characters: int = CALL_CHARACTERS,
        inline_characters: int = 0,
    ) -> None:
        """`worker` runs the calls; by default, a new thread.

        Texts of at most `inline_characters` together are tokenized on the caller's thread, if the tokenizer is idle.
        """
        self._tokenizer = tokenizer
        self._inline_characters = inline_characters
        self._short = _Worker(tokenizer, worker or ThreadPoolExecutor(1, "tokenizer"), max_call_characters)
        self._long = _Worker(tokenizer, SLOW_LANE, max_call_characters)

    async def count(self, texts: Sequence[str], *, long: bool = False) -> TokenBatch:
        """Tokenize; the order of `texts` is kept. `long`: they may take seconds."""
        characters = sum(map(len, texts))
        worker = self._long if long else self._short
        if characters <= self._inline_characters and not worker.running:
            return self._tokenizer.count(texts)
        return await worker.count(texts, characters)


class _Worker:
    """One call to the tokenizer at a time, with the texts of all callers that wait."""

    def __init__(self, tokenizer: Tokenizer, worker: Executor, max_call_characters: int) -> None:
        self.running = False
        self._tokenizer = tokenizer
        self._worker = worker
        self._max_call_characters = max_call_characters
        self._waiting: deque[_Caller] = deque()

    async def count(self, texts: Sequence[str], characters: int) -> TokenBatch:
        answer: asyncio.Future[TokenBatch] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Caller(texts, characters, answer))
        if not self.running:
            self._start()
        return await answer

    def _start(self) -> None:
        callers = self._take()
        self.running = bool(callers)
        if callers:
            groups = [caller.texts for caller in callers]
            work = asyncio.get_running_loop().run_in_executor(self._worker, _count_all, self._tokenizer, groups)
            work.add_done_callback(partial(self._finished, callers))

    def _take(self) -> list[_Caller]:
        """The first callers that wait, up to the limit of a call, and at least one."""
        callers: list[_Caller] = []
        room = self._max_call_characters
        while self._waiting and (not callers or self._waiting[0].characters <= room):
            caller = self._waiting.popleft()
            if not caller.answer.cancelled():
                room -= caller.characters
                callers.append(caller)
        return callers

    def _finished(self, callers: list[_Caller], work: asyncio.Future[list[TokenBatch | Exception]]) -> None:
        for caller, result in zip(callers, work.result(), strict=True):
            if caller.answer.done():
                continue
            if isinstance(result, Exception):
                caller.answer.set_exception(result)
            else:
                caller.answer.set_result(result)
        self._start()


def _count_all(tokenizer: Tokenizer, groups: Sequence[Sequence[str]]) -> list[TokenBatch | Exception]:
    """The tokens of each group, from one call; if it fails, from one call each, so that only one group fails."""
    if len(groups) > 1:
        try:
            return list(_split(tokenizer.count(list(chain.from_iterable(groups))), groups))
        except Exception:  # noqa: BLE001, S110 - raised again below, for the group at fault
            pass
    return [_count_one(tokenizer, texts) for texts in groups]


def _count_one(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenBatch | Exception:
    try:
        return tokenizer.count(texts)
    except Exception as error:  # noqa: BLE001 - returned to its caller
        return error


def _split(counted: TokenBatch, groups: Sequence[Sequence[str]]) -> list[TokenBatch]:
    ends = np.cumsum(counted.lengths)
    batches: list[TokenBatch] = []
    text = token = 0
    for group in groups:
        next_text = text + len(group)
        next_token = int(ends[next_text - 1]) if next_text else 0
        batches.append(TokenBatch(counted.ids[token:next_token], counted.lengths[text:next_text]))
        text, token = next_text, next_token
    return batches
