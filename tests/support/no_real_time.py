"""No real time and no sockets in unit tests: for this repository's code clocks tell a virtual time, and waiting raises.

The functions of `time` are replaced once, before the product is imported, because a default such as
`clock=time.monotonic` keeps what it finds then. Libraries, pytest among them, go on reading the real clocks.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, SupportsIndex

import grpc

from tests.support.virtual_time import START_S, AutojumpLoop

_ROOT = f"{Path(__file__).parents[2]}/"
_ENVIRONMENT = f"{sys.prefix}/"  # lies in the repository
WALL_S = 1_800_000_000.0
"""The time since 1970 at which the virtual time begins."""
_TICK_S = 1e-6
_forbidden = threading.Event()
_readings = count(1)


class RealTimeError(AssertionError):
    """A unit test waited, or used a socket."""


@contextmanager
def forbidden() -> Generator[None]:
    """Within it this repository's code has no real time."""
    global _readings  # noqa: PLW0603 - each test begins at the same time
    _readings = count(1)
    _forbidden.set()
    try:
        yield
    finally:
        _forbidden.clear()


def virtual_now_s() -> float:
    """The time of the loop that runs in this thread; without one each reading takes a microsecond."""
    loop = asyncio._get_running_loop()  # noqa: SLF001 - get_running_loop raises where none runs
    return loop.time() if isinstance(loop, AutojumpLoop) else START_S + _TICK_S * next(_readings)


def _ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_ROOT) and not file.startswith(_ENVIRONMENT)


def _replace_clock(name: str, virtual: Callable[[], float]) -> None:
    """The clock and its twin in nanoseconds."""
    _replace(name, virtual)
    _replace(f"{name}_ns", lambda: int(virtual() * 1e9))


def _replace(name: str, virtual: Callable[[], float]) -> None:
    real = getattr(time, name)

    def clock() -> float:
        return virtual() if _forbidden.is_set() and _ours(sys._getframe(1)) else real()  # noqa: SLF001 - of the caller

    setattr(time, name, clock)


def _replace_sleep() -> None:
    real = time.sleep

    def sleep(seconds: SupportsIndex | float) -> None:
        if float(seconds) > 0 and _forbidden.is_set() and _ours(sys._getframe(1)):  # noqa: SLF001 - of the caller
            raise RealTimeError(f"a unit test would sleep for {seconds} s: take the sleeping as an argument")
        real(seconds)

    time.sleep = sleep


def _refuse(owner: Any, name: str, what: str) -> None:
    real = getattr(owner, name)

    def method(*given: Any, **named: Any) -> Any:
        if _forbidden.is_set():
            raise RealTimeError(f"a unit test would {what}: what needs a network is a test of tests/integration")
        return real(*given, **named)

    setattr(owner, name, method)


def install() -> None:
    """Put the replacements in place; they do nothing but within `forbidden`."""
    for name in ("monotonic", "perf_counter", "thread_time", "process_time"):
        _replace_clock(name, virtual_now_s)
    _replace_clock("time", lambda: WALL_S + virtual_now_s() - START_S)
    _replace_sleep()
    for name in ("bind", "connect", "connect_ex"):
        _refuse(socket.socket, name, f"{name} a socket")
    _refuse(grpc.aio, "server", "start a gRPC server")
    _refuse(grpc, "server", "start a gRPC server")
