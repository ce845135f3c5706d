"""HTTP as a source: connections and their bounds, TLS, and the drain."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from contextlib import suppress
from math import inf
from typing import cast

from typing_extensions import override

from aggregator.observability.metrics import HttpClosed
from aggregator.request.request import HTTP
from aggregator.settings.aggregator import HttpSettings, TlsSettings
from aggregator.sources.calls.calls import CallSource, Served
from aggregator.sources.calls.certificates import WatchedFiles, server_context, watch_certificates
from aggregator.sources.http.calls import HttpCalls
from aggregator.sources.http.connection import Connection
from aggregator.sources.http.service import OpenAIService
from k8s.process.addresses import split_address
from k8s.process.errors import StartError

_LOG = logging.getLogger(__name__)
_KEEPALIVE_S = 75.0
"""An idle connection is closed after this time, as is one whose headers take as long; proxies close theirs before."""
_HANDSHAKE_S = 20.0
_BACKLOG = 1024
_TICK_S = 0.05
"""How late a call may be told that its deadline has passed."""
_MAX_INPUTS = 2048
"""Of one request, as at OpenAI."""
_IDLE_GRACE_S = 1.0
"""At a stop, how long an idle connection may still send a request, which is answered with `Connection: close`."""


class HttpSource(CallSource):
    """The listener. TLS and authentication are gRPC's. When it stops, each answer is the last of its connection."""

    def __init__(self, settings: HttpSettings, tls: TlsSettings, served: Served) -> None:
        """Raises StartError for certificates that cannot be read."""
        super().__init__(HTTP, served, _MAX_INPUTS)
        calls = HttpCalls(self._batcher, served.give_up, self._callers, served.load, timeout_s=settings.timeout_s)
        self._service = OpenAIService(calls, served.models, served.tracing, trusts_token_ids=settings.trusts_token_ids)
        self._bind = settings.bind
        self._certificates = watch_certificates(tls, server_context)
        self._most_connections = served.load.limits.max_connections
        self._connections: Connections | None = None
        self._listener: asyncio.Server | None = None

    @override
    async def prepare(self, timeout_s: float) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        host, port = split_address(self._bind)
        context = _rotating(self._certificates) if self._certificates is not None else None
        connections = Connections(self._service, self._most_connections, context)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                connections.accept, host or None, port, backlog=_BACKLOG
            )
        except OSError as error:
            raise StartError(f"http.bind {self._bind} cannot be bound: {error.strerror or error}") from error
        self._connections = connections
        self.address = f"{self._bind.rpartition(':')[0]}:{self._listener.sockets[0].getsockname()[1]}"
        _LOG.info("http listening", extra={"address": self.address, "tls": context is not None})

    @override
    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, answer what is open, and cancel what is still open after `grace_s`."""
        if self._listener is None or self._connections is None:
            self._batcher.close()
            return
        self._service.drains = True
        self._listener.close()
        idle_grace_s = min(_IDLE_GRACE_S, grace_s / 2)
        ends_s = asyncio.get_running_loop().time() + idle_grace_s
        while self._connections and asyncio.get_running_loop().time() < ends_s:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(min(0.02, idle_grace_s))
        await self._connections.end(grace_s - idle_grace_s)
        self._batcher.close()


class Connections:
    """All connections, bounded in number: where there are too many, the one idle for longest gives way to a new one.

    One timer ends those that are late. A handshake counts as an idle connection.
    """

    def __init__(self, service: OpenAIService, most: int, context: ssl.SSLContext | None) -> None:
        self.service = service
        self._most = most
        self._context = context
        self._idle: dict[Connection | _Handshake, None] = {}
        """The one that has been idle for longest first."""
        self._busy: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ticking = False

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def accept(self) -> asyncio.Protocol:
        return Connection(self) if self._context is None else _Handshake(self, self._context)

    def enter(self, connection: Connection | _Handshake) -> bool:
        """Count a connection in; False where there are too many, and each has a request."""
        if len(self) >= self._most:
            self.service.metrics.http_closed.add(1, HttpClosed.CROWDED)
            if not self._idle:
                return False
            idlest = next(iter(self._idle))
            self.leave(idlest)
            idlest.close()
        self.set_idle(connection)
        return True

    def leave(self, connection: Connection | _Handshake) -> None:
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def set_busy(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._busy.add(connection)
        if not self._is_ticking:
            self._is_ticking = True
            self._wake(_TICK_S)

    def set_idle(self, connection: Connection | _Handshake) -> None:
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


class _Handshake(asyncio.Protocol):
    """A connection until TLS is agreed on, which is then handed over to a `Connection`."""

    due_s = inf

    def __init__(self, connections: Connections, context: ssl.SSLContext) -> None:
        self._connections = connections
        self._context = context
        self._plain: asyncio.Transport | None = None
        self._early = bytearray()
        self._task: asyncio.Task[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = self._plain = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        if not self._connections.enter(self):
            plain.abort()
            return
        plain.pause_reading()  # what comes first is TLS's
        self._task = asyncio.create_task(self._agree(plain), name="TLS handshake")

    @override
    def data_received(self, data: bytes) -> None:
        """Keep what comes with the end of the handshake."""
        self._early += data

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.leave(self)

    def close(self) -> None:
        if self._plain is not None:
            self._plain.abort()

    async def _agree(self, plain: asyncio.Transport) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain, self, self._context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_S
            )
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError; it is the client's
            secured = None
        self._connections.leave(self)
        if secured is None or secured.is_closing():
            plain.abort()
            return
        connection = Connection(self._connections)
        secured.set_protocol(connection)
        connection.connection_made(secured)
        if self._early:
            connection.data_received(bytes(self._early))


def _rotating(certificates: WatchedFiles[ssl.SSLContext]) -> ssl.SSLContext:
    """A context that hands each handshake to the newest one."""

    def newest(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = certificates.get()

    first = certificates.get()
    first.sni_callback = newest
    return first
