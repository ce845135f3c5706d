"""A connection of the HTTP server without a network, which is handed bytes and given turns when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from typing_extensions import override

from k8s.pod.http.connection import Connection
from k8s.pod.http.connections import Connections, PooledConnection
from k8s.pod.http.exchange import Exchange, Service

if TYPE_CHECKING:
    import asyncio

Seen = tuple[str, bytes, dict[bytes, bytes], bytes, bool]
"""Method, target, headers, body, and whether the connection goes on."""


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = self.is_paused = False
        self.unread_bytes = 0

    def get_extra_info(self, name: str) -> None:
        """It has no address, and no certificate."""

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Answering(Service):
    """Answers each request once `goes_on`, and keeps what it was."""

    def __init__(self, *, goes_on: bool = True) -> None:
        self.goes_on = goes_on
        self.served: list[Exchange] = []
        self.seen: list[Seen] = []

    @override
    def open(self, exchange: Exchange) -> None:
        exchange.serve = self.serve

    def serve(self, exchange: Exchange) -> None:
        self.served.append(exchange)
        self.seen.append((exchange.method, exchange.url, exchange.headers, exchange.take_body(), exchange.keeps_alive))
        if self.goes_on:
            exchange.answer(200, b"{}", {})


class Turns(Connections):
    """Counts turns, and gives them when asked; nothing is late by itself."""

    turns = 0

    @override
    def later(self, connection: PooledConnection) -> None:
        self._waiting[connection] = None

    @override
    def _wake(self, after_s: float) -> None: ...

    def next(self) -> bool:
        """Give one; False where nobody waits."""
        if not self._waiting:
            return False
        connection, _ = self._waiting.popitem(last=False)
        connection.turn()
        self.turns += 1
        return True


class Watched(Connection):
    """One whose request is seen, and which can change its pool."""

    @property
    def now(self) -> Exchange:
        return self._now

    def join(self, pool: Turns) -> None:
        self._connections = pool
        assert pool.enter(self)


class Alone:
    """A connection that no other one is beside."""

    def __init__(self, *, goes_on: bool = True, wire: Wire | None = None) -> None:
        self.service = Answering(goes_on=goes_on)
        self.wire = wire or Wire()
        self.connections = Turns(8)
        self.unread = b""
        """On its way in the network."""
        self.connection = Watched(self.service, self.connections)
        self.connection.connection_made(cast("asyncio.Transport", self.wire))

    def send(self, *pieces: bytes) -> list[Seen]:
        for piece in pieces:
            self.unread += piece
            self.go_on()
        return self.service.seen

    def go_on(self) -> None:
        """Read and give turns, until there is nothing to do."""
        while self.read() or self.connections.next():
            pass

    def read(self) -> bool:
        """Hand over as much as the connection takes at a time; False where there is nothing, or reading is paused."""
        if not self.unread or self.wire.is_paused or self.wire.is_closed:
            return False
        room = self.connection.get_buffer(-1)
        size = min(len(room), len(self.unread))
        room[:size], self.unread = self.unread[:size], self.unread[size:]
        self.connection.buffer_updated(size)
        return True

    def join(self, pool: Turns) -> None:
        """Be one of these connections."""
        self.connections = pool
        self.connection.join(pool)

    @property
    def now(self) -> Exchange:
        return self.connection.now

    @property
    def statuses(self) -> list[int]:
        return [int(each[:3]) for each in self.wire.written.split(b"HTTP/1.1 ")[1:]]
