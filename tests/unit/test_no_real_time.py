"""What every other unit test relies on: no clock of the machine, no waiting and no network."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from tests.support.no_real_time import WALL_S, RealTimeError
from tests.support.until import wait_until
from tests.support.virtual_time import START_S


def clocks() -> tuple[float, float, float]:
    return time.monotonic(), time.perf_counter(), time.time()


@pytest.mark.real_time("tests that only this marker gives the machine's clocks back")
def test_the_clocks_of_the_machine_are_left_to_who_asks_for_them() -> None:
    monotonic, perf_counter, wall = clocks()
    assert START_S not in {monotonic, perf_counter}
    assert wall != WALL_S


def test_a_clock_where_no_loop_runs_goes_on_by_being_read() -> None:
    readings = [time.monotonic() for _ in range(1000)]
    assert readings == sorted(set(readings))
    assert readings[0] > START_S
    assert readings[-1] == pytest.approx(START_S + 0.001)


def test_clocks_in_nanoseconds_are_not_the_machine_s_either() -> None:
    assert time.time_ns() / 1e9 - WALL_S == pytest.approx(0.0, abs=1e-3)
    assert time.monotonic_ns() / 1e9 - START_S == pytest.approx(0.0, abs=1e-3)


async def test_an_hour_of_a_loop_passes_at_once_on_every_clock() -> None:
    began = clocks()
    await asyncio.sleep(3600.0)
    assert [now - then for now, then in zip(clocks(), began, strict=True)] == [3600.0] * 3


async def test_time_stands_while_a_thread_works() -> None:
    went_on = asyncio.Event()
    asyncio.get_running_loop().call_later(60.0, went_on.set)
    assert await asyncio.to_thread(sum, range(100_000)) == 4_999_950_000
    assert not went_on.is_set()


def test_what_would_wait_raises() -> None:
    with pytest.raises(RealTimeError, match="sleep for"):
        wait_until(lambda: False, "nothing")


async def test_what_would_use_a_network_raises() -> None:
    with pytest.raises(RealTimeError, match="bind a socket"):
        await asyncio.start_server(lambda *_: None, "localhost", 0)
    with pytest.raises(RealTimeError, match="start a gRPC server"):
        grpc.aio.server()
