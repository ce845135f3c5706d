"""What was put back is remembered exactly, in the text beside a committed offset."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.clients.bookmark import Bookmark

OFFSETS = st.lists(st.integers(0, 300), max_size=200)


@given(st.integers(0, 50), OFFSETS, OFFSETS)
def test_two_runs_remember_what_one_would(start: int, first: list[int], second: list[int]) -> None:
    before = Bookmark(start)
    for offset in first:
        before.put_back(offset)
    after = Bookmark(before.position, before.metadata())
    for offset in second:
        after.put_back(offset)
    done = {*range(start), *first, *second}
    assert [offset for offset in range(400) if offset in after] == sorted(done)
    assert after.position == next(offset for offset in range(400) if offset not in done)


def test_offsets_without_a_letter_hold_nothing_back_and_those_before_them_do() -> None:
    bookmark = Bookmark(5)
    bookmark.pass_over(5, 8)
    assert bookmark.position == 8
    bookmark.pass_over(9, 12)
    assert bookmark.position == 8
    bookmark.put_back(8)
    assert (bookmark.position, bookmark.metadata()) == (12, "")


def test_a_letter_that_stays_is_never_passed_over() -> None:
    bookmark = Bookmark(0)
    for offset in range(1, 2000):
        bookmark.put_back(offset)
    assert bookmark.position == 0
    assert Bookmark(0, bookmark.metadata()).position == 0


def test_what_does_not_fit_is_forgotten_from_the_far_end() -> None:
    chance = random.Random(1)
    done = sorted(chance.sample(range(1, 200_000), 100_000))
    bookmark = Bookmark(0)
    for offset in done:
        bookmark.put_back(offset)
    told = bookmark.metadata()
    assert len(told) <= 4096
    again = Bookmark(0, told)
    kept = [offset for offset in done if offset in again]
    assert len(kept) > 8_000
    assert kept == done[: len(kept)]


@pytest.mark.parametrize("metadata", ["", "somebody else's", "1:", "1:not base64!", "1:AAAA", "2:eJwDAAAAAAE="])
def test_what_is_no_bookmark_s_is_taken_for_none(metadata: str) -> None:
    assert [offset for offset in range(20) if offset in Bookmark(3, metadata)] == [0, 1, 2]
