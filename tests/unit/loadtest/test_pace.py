"""Queries are due at their rate, whatever went before."""

import time

import pytest

from loadtest.clients.pace import paced


async def test_without_a_rate_all_is_due_at_once() -> None:
    assert [numbers async for numbers in paced(5, None, chunk=2)] == [range(2), range(2, 4), range(4, 5)]


async def test_at_a_rate_each_is_sent_when_it_is_due() -> None:
    began_s = time.monotonic()
    numbers = [number async for chunk in paced(11, 100.0, chunk=4) for number in chunk]
    assert numbers == list(range(11))
    assert time.monotonic() - began_s == pytest.approx(0.1, abs=0.06)
