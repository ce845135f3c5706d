"""Figures in words: durations, rates, and nouns with their numbers."""

import pytest

from loadtest.screen import counted, duration, pace


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),
        (0.0104, "10.4 ms"),
        (1.0, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (157.4902, "2 min 37 s"),
        (7200.0, "2 h 0 min"),
    ],
)
def test_a_duration_is_given_in_the_units_that_people_use(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("per_s", "left_s", "words"),
    [(None, None, ""), (1234.5, 61.0, "1,234/s, 1 min 1 s left"), (3.0, None, "3/s"), (0.0, 5.0, "5.0 s left")],
)
def test_a_bar_gives_its_rate_and_the_time_left(per_s: float | None, left_s: float | None, words: str) -> None:
    assert pace(per_s, left_s) == words


def test_one_is_followed_by_a_singular() -> None:
    assert [counted(1, "record"), counted(2, "record")] == ["1 record", "2 records"]
    assert [counted(1, "query", "queries"), counted(1234, "query", "queries")] == ["1 query", "1,234 queries"]
