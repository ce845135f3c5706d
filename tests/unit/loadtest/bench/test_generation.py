"""Benchmarks of generation: what callers hear, and the figures that come of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from loadtest.lab.bench.generation.beside_vllm import TINY_BOUNDS, figures
from loadtest.lab.bench.generation.sides import Turn
from loadtest.lab.bench.generation.streams import Asked, hear
from loadtest.lab.bench.turns import Medians
from loadtest.stack.errors import StackError

TURN = Turn(100.0, 0.1, 0.2, 0.01, 0.02, 50.0, 20.0, 5.0)


async def test_the_tokens_of_texts_that_come_at_the_same_time_are_all_counted() -> None:
    async def parts(one: Asked) -> AsyncIterator[tuple[bool, int]]:
        for _ in range(one.tokens - 1):
            yield True, 0
        yield True, one.tokens
        yield False, one.tokens

    heard = await hear(parts, [Asked("a", 3), Asked("b", 2), Asked("c", 1)], 2)
    assert heard.tokens == 6
    assert (len(heard.first_s), len(heard.between_s)) == (3, 3)


async def test_a_text_that_is_too_short_is_an_error() -> None:
    async def parts(one: Asked) -> AsyncIterator[tuple[bool, int]]:
        yield True, one.tokens - 1

    with pytest.raises(StackError, match="2 tokens, not the 3"):
        await hear(parts, [Asked("a", 3)], 1)


def test_ratios_are_taken_turn_by_turn() -> None:
    ours = [replace(TURN, tokens_per_s=200.0), replace(TURN, tokens_per_s=90.0), replace(TURN, tokens_per_s=300.0)]
    theirs = [TURN, replace(TURN, tokens_per_s=30.0), TURN]
    turns = {"ours": ours, "vllm": theirs, "ours_whole": ours}
    found = {each.figure: each for each in figures(turns, Medians("P7", 3, "", TINY_BOUNDS))}
    assert found["tokens_over_vllm"].value == 3.0
    assert found["tokens_over_vllm"].kept
    assert not found["cpu_over_vllm"].kept
    assert (found["whole_ours_front_cpu"].value, found["whole_ours_front_cpu"].kept) == (20.0, False)
