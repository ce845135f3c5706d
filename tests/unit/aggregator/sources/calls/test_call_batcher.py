"""Calls are batched only while no server could take them, and never long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf

import pytest

from aggregator.request.request import Request
from aggregator.sources.calls.calls import ENOUGH_INPUTS, LONGEST_S, CallBatcher
from tests.support.fake_source import any_request
from tests.support.virtual_time import in_virtual_time, run


class Intake:
    """What was admitted and when; `busy_s` is how long each admission takes."""

    def __init__(self, next_batch_at: float, busy_s: float = 0.0) -> None:
        self.admitted: list[tuple[float, int]] = []
        self._busy_s = busy_s
        loop = asyncio.get_running_loop()
        self._start_s = loop.time()
        self._next_batch_at = self._start_s + next_batch_at
        self.batcher = CallBatcher(self._next, loop.time)
        self._task = asyncio.create_task(self._run())

    def _next(self, now_s: float) -> float:
        return max(now_s, self._next_batch_at)

    async def _run(self) -> None:
        while calls := await self.batcher.receive():
            await self._admit(calls)

    async def _admit(self, calls: Sequence[Request]) -> None:
        self.admitted.append((round(asyncio.get_running_loop().time() - self._start_s, 6), len(calls)))
        await asyncio.sleep(self._busy_s)


def call(inputs: int = 1) -> Request:
    return any_request(*["rain"] * inputs)


def admitted(
    next_batch_at: float,
    come: Sequence[tuple[float, int]],
    busy_s: float = 0.0,
    then: Callable[[Intake], None] | None = None,
) -> list[tuple[float, int]]:
    """When how many calls were admitted, if calls of so many inputs come at these times."""

    async def scenario() -> list[tuple[float, int]]:
        intake = Intake(next_batch_at, busy_s)
        now_s = 0.0
        for come_s, inputs in come:
            if come_s > now_s:
                await asyncio.sleep(come_s - now_s)
                now_s = come_s
            intake.batcher.add(call(inputs))
        if then is not None:
            then(intake)
        await asyncio.sleep(1.0)
        return intake.admitted

    return run(scenario())


@pytest.mark.parametrize(
    ("next_batch_at", "come", "went"),
    [
        (0.0, [(0.0, 1)] * 5, [(0.0, 5)]),
        (0.004, [(0.0, 1), (0.001, 1), (0.003, 1)], [(0.004, 3)]),
        (inf, [(0.0, 1), (0.009, 1), (0.011, 1)], [(LONGEST_S, 2), (0.021, 1)]),
        (inf, [(0.0, 1), (0.002, ENOUGH_INPUTS - 1)], [(0.002, 2)]),
    ],
    ids=["an idle server", "a server's turn", "the longest wait", "enough inputs"],
)
def test_calls_are_batched_until_a_server_has_its_turn_within_the_bounds(
    next_batch_at: float, come: list[tuple[float, int]], went: list[tuple[float, int]]
) -> None:
    assert admitted(next_batch_at, come) == went


def test_a_server_that_is_done_early_ends_the_wait() -> None:
    assert admitted(inf, [(0.0, 1), (0.001, 1)], then=lambda intake: intake.batcher.receive_now()) == [(0.001, 2)]


@pytest.mark.parametrize("inputs", [1, ENOUGH_INPUTS])
def test_what_comes_during_an_admission_goes_right_after_it(inputs: int) -> None:
    assert admitted(0.0, [(0.0, 1), (0.01, inputs), (0.02, 1)], busy_s=0.05) == [(0.0, 1), (0.05, 2)]


@in_virtual_time
async def test_once_closed_it_brings_what_came_before_and_then_nothing() -> None:
    batcher = CallBatcher(lambda _: inf, asyncio.get_running_loop().time)
    batcher.add(call())
    batcher.close()
    assert [len(await batcher.receive()) for _ in range(2)] == [1, 0]
