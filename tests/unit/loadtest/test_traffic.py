"""Queries are due at their rate, whatever went before."""

import asyncio
from types import SimpleNamespace

import pytest

from loadtest.kit import traffic
from loadtest.kit.traffic import paced
from tests.support.virtual_time import run


async def test_without_a_rate_all_is_due_at_once() -> None:
    assert [numbers async for numbers in paced(5, None, chunk=2)] == [range(2), range(2, 4), range(4, 5)]


@pytest.mark.parametrize("late_s", [0.0, 0.07])
def test_at_a_rate_each_is_sent_when_due_and_a_late_sender_catches_up(
    late_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sent_s() -> list[float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(traffic, "time", SimpleNamespace(monotonic=loop.time))
        began_s = loop.time()
        found: list[float] = []
        async for numbers in paced(21, 100.0, chunk=4):
            assert numbers.start == len(found)
            found += [loop.time() - began_s] * len(numbers)
            if numbers.start == 0:
                await asyncio.sleep(late_s)
        return found

    due_s = [0.0, *(max(late_s, number / 100.0) for number in range(1, 21))]
    assert run(sent_s()) == pytest.approx(due_s, abs=0.006)
