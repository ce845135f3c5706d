"""A stop string is found where it first ends, and what may be its begin is known, however the text comes in pieces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.wings.generation.stops import StopString

AB = st.text("ab", max_size=12)


@given(st.text("ab", min_size=1, max_size=6), st.lists(AB, max_size=6))
def test_it_ends_where_a_search_of_the_whole_text_finds_it(stop: str, pieces: list[str]) -> None:
    reading = StopString(stop)
    text = ""
    for piece in pieces:
        ends = [end for end in range(1, len(piece) + 1) if (text + piece[:end]).endswith(stop)]
        text += piece
        assert reading.read(piece) == (ends[0] if ends else 0)
        assert reading.held == max((size for size in range(len(stop)) if text.endswith(stop[:size])), default=0)


class Counted(str):
    """A text whose characters count how often they are looked at."""

    __slots__ = ()
    looked = 0

    def __iter__(self) -> Iterator[str]:
        for character in super().__str__():
            Counted.looked += 1
            yield character


@pytest.mark.parametrize("stop", ["a" * 1023 + "b", "ab" * 512, "a" * 512 + "b" * 512])
def test_a_long_stop_string_looks_at_each_character_once(stop: str) -> None:
    reading = StopString(stop)
    Counted.looked = 0
    for _ in range(100):
        assert reading.read(Counted("a" * 10)) == 0
    assert Counted.looked == 1000
