"""The limits of all connections: their callers, their number, and the size and the speed of bodies."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

import numpy as np

from aggregator.observability.metrics import HttpClosed, Metrics
from aggregator.sources.calls.callers import check_repeated
from aggregator.sources.calls.calls import Calls
from aggregator.sources.calls.load import RateLimit
from aggregator.sources.http.errors import FieldError, HttpError
from aggregator.sources.http.exchange import Exchange
from aggregator.sources.wire.decode import SMALL_BYTES

_BYTES_PER_S = 16.0 * 1024 * 1024
"""The rate of all large bodies together: reading them faster would hold up the event loop, and so all other callers.

Refused bodies are drained at this rate too, under a limit of their own, so that they slow no accepted one.
"""
_MAX_STRINGS = 16_384
"""Texts and names in one body, which cost more than their bytes; an embeddings request has 2,048 inputs at most."""
_QUOTE = ord('"')
_KEEPALIVE_S = 75.0
"""An idle connection is closed after this time, as is one whose headers take as long; proxies close theirs before."""
_TICK_S = 0.05
"""How late a call may be told that its deadline has passed."""
_UNCOMPRESSED = ("", "identity")


@dataclass(eq=False)
class HttpCalls(Calls):
    """Calls whose messages are the bodies of HTTP requests; `timeout_s`: of a call that asks for no shorter one."""

    timeout_s: float = field(kw_only=True)
    _reading: RateLimit = field(init=False, default_factory=lambda: RateLimit(_BYTES_PER_S))
    _reading_refused: RateLimit = field(init=False, default_factory=lambda: RateLimit(_BYTES_PER_S))

    def enter(self, exchange: Exchange) -> None:
        """Identify its caller, and take room for it. Raises TokenbatchError."""
        check_repeated(exchange.repeated)
        exchange.identity = self.callers.identify(exchange.header_of, exchange.peer, exchange.certificate)
        exchange.deadline_s = self.clock() + min(self.timeout_s, exchange.wait_s())
        exchange.room = self.load.enter(exchange.identity.holders)

    def expect(self, exchange: Exchange) -> None:
        """Check what its headers say of its body. Raises TokenbatchError."""
        if exchange.header(b"content-encoding").strip().lower() not in _UNCOMPRESSED:
            raise HttpError(415, "unsupported_encoding", "the body is compressed: send it as it is", closes=True)
        if exchange.length > self.load.limits.max_message_bytes:
            raise self._too_large()

    def received(self, exchange: Exchange) -> float:
        """Count what has come of its body. Returns how long to wait (s) until more is read. Raises TokenbatchError.

        If its length is known, room for all of it is taken before.
        """
        room, size_bytes = exchange.held_room, exchange.arrived_bytes
        if size_bytes > self.load.limits.max_message_bytes:
            raise self._too_large()
        if exchange.length > room.size_bytes:
            room.widen(exchange.length - room.size_bytes)
        if size_bytes <= SMALL_BYTES:
            return 0.0
        new = exchange.body[exchange.counted_bytes :]
        exchange.counted_bytes = size_bytes
        exchange.quotes = count_quotes(exchange.body, new, exchange.quotes)
        return self._reading.wait_s(len(new), self.clock())

    def discarded(self, size_bytes: int) -> float:
        """The same of a refused body."""
        return self._reading_refused.wait_s(size_bytes, self.clock())

    def _too_large(self) -> HttpError:
        message = (
            f"the body is larger than {self.load.limits.max_message_bytes} bytes: send fewer inputs in one request"
        )
        return HttpError(413, "request_too_large", message, closes=True)


def count_quotes(data: bytes | bytearray, last: bytes | bytearray, found: int) -> int:
    """At least as many quotes begin and end a string of `data`, if `found` do before its `last` part.

    Raises FieldError for too many. A quote after a backslash counts as part of a string.
    """
    found += int(np.count_nonzero(np.frombuffer(last, np.uint8) == _QUOTE))
    found -= data.count(b'\\"', max(0, len(data) - len(last) - 1))
    if found > 2 * _MAX_STRINGS:
        raise FieldError(f"the body has more than {_MAX_STRINGS} texts and names: send fewer inputs in one request")
    return found


class Pooled(asyncio.Protocol):
    """One of the `Connections`; `due_s` (monotonic): when one that is idle is closed, and a busy one is late."""

    transport: asyncio.Transport
    due_s = inf

    def close(self) -> None:
        self.transport.abort()

    def late(self) -> None:
        self.close()


class Connections:
    """All connections, bounded in number: where there are too many, the one idle for longest gives way to a new one.

    One timer ends those that are late. A handshake counts as an idle connection.
    """

    def __init__(self, metrics: Metrics, most: int) -> None:
        self._metrics = metrics
        self._most = most
        self._idle: dict[Pooled, None] = {}
        """The one that has been idle for longest first."""
        self._busy: set[Pooled] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ticking = False

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def enter(self, connection: Pooled) -> bool:
        """Count a connection in; False where there are too many, and each has a request."""
        if len(self) >= self._most:
            self._metrics.http_closed.add(1, HttpClosed.CROWDED)
            if not self._idle:
                return False
            idlest = next(iter(self._idle))
            self.leave(idlest)
            idlest.close()
        self.set_idle(connection)
        return True

    def leave(self, connection: Pooled) -> None:
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def set_busy(self, connection: Pooled) -> None:
        self._idle.pop(connection, None)
        self._busy.add(connection)
        if not self._is_ticking:
            self._is_ticking = True
            self._wake(_TICK_S)

    def set_idle(self, connection: Pooled) -> None:
        self._busy.discard(connection)
        self._idle[connection] = None
        connection.due_s = time.monotonic() + _KEEPALIVE_S
        if self._timer is None:
            self._wake(_KEEPALIVE_S)

    def _wake(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(after_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        for connection in [each for each in self._busy if each.due_s <= now_s]:
            connection.late()
        while self._idle and (idlest := next(iter(self._idle))).due_s <= now_s:
            self.leave(idlest)
            idlest.close()
        self._is_ticking = bool(self._busy)
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
                while self._busy:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(_TICK_S)
        for connection in list(self._busy):
            connection.transport.abort()
        while self._busy:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
