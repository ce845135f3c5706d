"""HTTP as a source: connections and their bounds, TLS, and the drain."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import cast

from typing_extensions import override

from aggregator.request.request import HTTP
from aggregator.settings.aggregator import HttpSettings, TlsSettings
from aggregator.sources.calls.calls import CallSource, Served
from aggregator.sources.calls.certificates import WatchedFiles, server_context, watch_certificates
from aggregator.sources.http.calls import Connections, HttpCalls, Pooled
from aggregator.sources.http.connection import Connection
from aggregator.sources.http.service import OpenAIService
from k8s.pod.addresses import split_address
from k8s.pod.errors import StartError

_LOG = logging.getLogger(__name__)
_HANDSHAKE_S = 20.0  # a distant client on a bad line takes some seconds
_BACKLOG = 1024  # connections that wait to be accepted: all clients come back at once after a restart
_MAX_INPUTS = 2048
"""The most inputs of one request, as at OpenAI."""
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
        self._connections = Connections(served.load.metrics, served.load.limits.max_connections)
        self._listener: asyncio.Server | None = None

    @override
    async def prepare(self, timeout_s: float) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        host, port = split_address(self._bind)
        context = _rotating(self._certificates) if self._certificates is not None else None

        def accept() -> Pooled:
            connection = Connection(self._service, self._connections)
            return connection if context is None else _Handshake(connection, self._connections, context)

        try:
            self._listener = await asyncio.get_running_loop().create_server(
                accept, host or None, port, backlog=_BACKLOG
            )
        except OSError as error:
            raise StartError(f"http.bind {self._bind} cannot be bound: {error.strerror or error}") from error
        self.address = f"{self._bind.rpartition(':')[0]}:{self._listener.sockets[0].getsockname()[1]}"
        _LOG.info("http listening", extra={"address": self.address, "tls": context is not None})

    @override
    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, answer open requests, and cancel those still open after `grace_s`."""
        if self._listener is None:
            self._batcher.close()
            return
        self._service.responses.drains = True
        self._listener.close()
        idle_grace_s = min(_IDLE_GRACE_S, grace_s / 2)
        ends_s = asyncio.get_running_loop().time() + idle_grace_s
        while self._connections and asyncio.get_running_loop().time() < ends_s:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(min(0.02, idle_grace_s))
        await self._connections.end(grace_s - idle_grace_s)
        self._batcher.close()


class _Handshake(Pooled):
    """A connection until TLS is agreed on, which is then handed over to its `Connection`."""

    def __init__(self, connection: Connection, connections: Connections, context: ssl.SSLContext) -> None:
        self._connection = connection
        self._connections = connections
        self._context = context
        self._early = bytearray()
        self._task: asyncio.Task[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        if not self._connections.enter(self):
            plain.abort()
            return
        plain.pause_reading()  # the first bytes are TLS's
        self._task = asyncio.create_task(self._agree(plain), name="TLS handshake")

    @override
    def data_received(self, data: bytes) -> None:
        """Keep the bytes that come with the end of the handshake."""
        self._early += data

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.leave(self)

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
        secured.set_protocol(self._connection)
        self._connection.connection_made(secured)
        if self._early:
            self._connection.data_received(bytes(self._early))


def _rotating(certificates: WatchedFiles[ssl.SSLContext]) -> ssl.SSLContext:
    """A context that hands each handshake to the newest one."""

    def newest(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = certificates.get()

    first = certificates.get()
    first.sni_callback = newest
    return first
