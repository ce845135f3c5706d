"""What was put back is remembered exactly, in the text beside a committed offset."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.wings.redrive.dead_letters import Offsets

OFFSETS = st.lists(st.integers(0, 300), max_size=200)


@given(st.integers(0, 50), OFFSETS, OFFSETS)
def test_two_runs_remember_what_one_would(start: int, first: list[int], second: list[int]) -> None:
    before = Offsets(start)
    for offset in first:
        before.put_back(offset)
    after = Offsets(before.position, before.metadata())
    for offset in second:
        after.put_back(offset)
    done = {*range(start), *first, *second}
    assert [offset for offset in range(400) if offset in after] == sorted(done)
    assert after.position == next(offset for offset in range(400) if offset not in done)


def test_offsets_with_no_letter_hold_nothing_back_those_before_them_do() -> None:
    done = Offsets(5)
    done.pass_over(5, 8)
    assert done.position == 8
    done.pass_over(9, 12)
    assert done.position == 8
    done.put_back(8)
    assert (done.position, done.metadata()) == (12, "")


def test_what_does_not_fit_is_forgotten_from_the_far_end() -> None:
    chance = random.Random(1)
    put_back = sorted(chance.sample(range(1, 200_000), 100_000))
    done = Offsets(0)
    for offset in put_back:
        done.put_back(offset)
    told = done.metadata()
    assert len(told) <= 4096
    again = Offsets(0, told)
    kept = [offset for offset in put_back if offset in again]
    assert len(kept) > 8_000
    assert kept == put_back[: len(kept)]


@pytest.mark.parametrize("metadata", ["", "somebody else's", "1:", "1:not base64!", "1:AAAA", "2:eJwDAAAAAAE="])
def test_metadata_of_another_kind_is_taken_for_none(metadata: str) -> None:
    assert [offset for offset in range(20) if offset in Offsets(3, metadata)] == [0, 1, 2]
