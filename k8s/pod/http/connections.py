"""All connections of one port: their number is bounded, one timer ends those that are late, and each has its turns."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum, auto
from math import inf

CROWDED, UNREAD = "crowded", "unread"
"""Why a connection was closed: for a new one, or because nothing of its response was read."""
SMALL_READ, LARGE_READ = 16 * 1024, 256 * 1024
"""Bytes that are read at once: of what may be requests, which then wait to be parsed, and of a large body."""
_MOST_LINGERING = 256
"""Connections whose clients only owe something: the rest of a refused body, or to read what is written.

At most a quarter of the others', so that few are where few files may be open.
"""
_TICK_S = 0.05
"""How late a call may be told that its deadline has passed."""
_TURN_S = 0.001
"""The time that all connections which have more to be parsed take of one turn of the event loop, together."""


class State(IntEnum):
    """Of a connection: what it waits for."""

    IDLE = auto()  # the first byte of a request
    HEAD = auto()  # the rest of a request's head
    BODY = auto()  # the rest of its body
    SERVING = auto()  # its response
    WRITING = auto()  # the client, to read most of what is written
    LINGERING = auto()  # the rest of the body of a request that is answered already
    CLOSING = auto()  # the client, to read all that is written


TIMEOUT_S = {
    State.IDLE: 75.0,  # proxies close theirs before
    State.HEAD: 75.0,  # counted from the end of the last request, so that slow heads are no better than none
    State.BODY: 5.0,  # as over gRPC
    State.SERVING: inf,  # the service sets the deadline of the request
    State.WRITING: 30.0,
    State.LINGERING: 2.0,  # so that the sender of a refused body reads the refusal
    State.CLOSING: 30.0,
}
"""How long a connection may be in a state."""
LEAST_READ_BYTES = 64 * 1024
"""What a client reads in `TIMEOUT_S`, at least, to get as long again: others need the room of its response."""


class PooledConnection:
    """One of the `Connections`; `due_s` (monotonic): when it has been in its `state` for too long."""

    state = State.IDLE
    due_s = inf
    _unread_bytes = 0
    """Of what is written, when its client's time to read began."""
    pool: dict[PooledConnection, None] | None = None
    """The one of their lists that it is in."""

    def await_reader(self, state: State, unread_bytes: int) -> None:
        """Begin the time in which its client must read. `unread_bytes`: written to the transport, not sent yet."""
        self.state, self.due_s = state, time.monotonic() + TIMEOUT_S[state]
        self._unread_bytes = unread_bytes

    def is_read(self, unread_bytes: int) -> bool:
        """Whether its client, whose time has passed, has read enough to be given as long again, and is."""
        if self._unread_bytes - unread_bytes < LEAST_READ_BYTES:
            return False
        self.await_reader(self.state, unread_bytes)
        return True

    def close(self) -> None:
        """Close it once all that is written is sent."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close it now."""
        raise NotImplementedError

    def on_timeout(self) -> None:
        """`due_s` has passed."""
        raise NotImplementedError

    def turn(self) -> None:
        """Go on with what has come."""
        raise NotImplementedError


class Connections:
    """All connections, bounded in number: where there are too many, the one idle for longest gives way to a new one.

    A handshake counts as an idle connection. Those that linger have a bound of their own, so that refused callers
    leave room for others; where too many linger, the first of them is cut off.
    """

    def __init__(self, most: int, on_closed: Callable[[str], None] = lambda _: None) -> None:
        """`on_closed`: one was closed while its client wanted it, and why."""
        self.on_closed = on_closed
        self._most = most
        self._most_lingering = min(_MOST_LINGERING, max(1, most // 4))
        self._idle: dict[PooledConnection, None] = {}
        """The one that has been idle for longest first."""
        self._busy: dict[PooledConnection, None] = {}
        self._lingering: dict[PooledConnection, None] = {}
        """The one that has lingered for longest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_ticking = False
        self._waiting: OrderedDict[PooledConnection, None] = OrderedDict()
        self._turning: asyncio.Handle | None = None
        self.large_buffer = memoryview(bytearray(LARGE_READ))
        """What is read goes here, and is taken from here in the same callback."""
        self.small_buffer = self.large_buffer[:SMALL_READ]

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy) + len(self._lingering)

    def enter(self, connection: PooledConnection) -> bool:
        """Count a connection in; False where there are too many, and each has a request."""
        if len(self._idle) + len(self._busy) >= self._most:
            self.on_closed(CROWDED)
            if not self._idle:
                return False
            next(iter(self._idle)).close()
        self.set_idle(connection)
        return True

    def leave(self, connection: PooledConnection) -> None:
        if connection.pool is not None:
            del connection.pool[connection]
            connection.pool = None

    def _move(self, connection: PooledConnection, pool: dict[PooledConnection, None]) -> None:
        """Put it behind the others there."""
        if connection.pool is not None:
            del connection.pool[connection]
        connection.pool = pool
        pool[connection] = None

    def set_busy(self, connection: PooledConnection) -> None:
        """It has a request."""
        if connection.pool is not self._busy:
            self._move(connection, self._busy)
            self._tick_soon()

    def set_idle(self, connection: PooledConnection) -> None:
        """It has none."""
        self._move(connection, self._idle)
        connection.due_s = time.monotonic() + TIMEOUT_S[State.IDLE]
        if self._timer is None:
            self._wake(TIMEOUT_S[State.IDLE])

    def set_lingering(self, connection: PooledConnection) -> None:
        """Its client only owes something."""
        if connection.pool is self._lingering:
            return
        self._move(connection, self._lingering)
        self._tick_soon()
        if len(self._lingering) > self._most_lingering:
            first = next(iter(self._lingering))
            self.leave(first)
            self.on_closed(CROWDED)
            first.abort()

    def is_busy(self, connection: PooledConnection) -> bool:
        return connection.pool is self._busy

    def later(self, connection: PooledConnection) -> None:
        """Give it another turn, behind those that wait for one."""
        self._waiting[connection] = None
        if self._turning is None:
            self._turning = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        ends_s = time.perf_counter() + _TURN_S
        try:
            while self._waiting:
                connection, _ = self._waiting.popitem(last=False)
                connection.turn()
                if time.perf_counter() >= ends_s:
                    break
        finally:
            self._turning = asyncio.get_running_loop().call_soon(self._turn) if self._waiting else None

    def _tick_soon(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._wake(_TICK_S)

    def _wake(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(after_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        try:
            for connection in [each for pool in (self._busy, self._lingering) for each in pool if each.due_s <= now_s]:
                connection.on_timeout()
            while self._idle and (idlest := next(iter(self._idle))).due_s <= now_s:
                idlest.on_timeout()
        finally:
            self._wake_again(now_s)

    def _wake_again(self, now_s: float) -> None:
        self._is_ticking = bool(self._busy or self._lingering)
        if self._is_ticking:
            self._wake(_TICK_S)
        elif self._idle:
            self._wake(max(_TICK_S, next(iter(self._idle)).due_s - now_s))

    async def end(self, grace_s: float) -> None:
        """Close idle connections at once, and the others after their answers; cut off what is open after `grace_s`."""
        for connection in list(self._idle):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._busy or self._lingering:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(_TICK_S)
        for connection in [*self._busy, *self._lingering]:
            connection.abort()
        while self._busy or self._lingering:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
