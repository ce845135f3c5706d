"""A port that speaks HTTP: its listener, TLS and the drain."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from socket import (
    AF_INET6,
    AI_PASSIVE,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    SHUT_RDWR,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    socket,
)
from typing import Any

from typing_extensions import override

from k8s.pod.addresses import split_address
from k8s.pod.errors import StartError
from k8s.pod.http.connection import Connection
from k8s.pod.http.connections import SMALL_READ, Connections, PooledConnection
from k8s.pod.http.exchange import Service

_HANDSHAKE_S = 20.0  # a distant client on a bad line takes some seconds
_BACKLOG = 1024  # connections that wait to be accepted: all clients come back at once after a restart
_ACCEPTED = 16
"""Connections accepted in a turn of the event loop, each of which begins a handshake."""
_NO_FILE_S = 1.0
"""How long nothing is accepted when the process may open no more files, as in asyncio."""
_IDLE_GRACE_S = 1.0
"""At a stop, how long an idle connection may still send a request, which is answered with `Connection: close`."""


class HttpServer:
    """Serves `service` on one port. `tls`: gives the present context, newer ones for later handshakes; None: no TLS."""

    def __init__(
        self, service: Service, connections: Connections, tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._service = service
        self._connections = connections
        self._context = _rotating(tls) if tls is not None else None
        self._listeners: list[socket] = []
        self._servers: list[asyncio.Server] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    async def start(self, setting: str, bind: str) -> str:
        """Listen; returns the address, with the port that 0 picks. Raises StartError, which names the `setting`."""
        host, port = split_address(bind)
        loop = asyncio.get_running_loop()
        try:
            self._listeners = await _bound(host, port)
            for listener in self._listeners:
                if self._context is None:
                    server = await loop.create_server(self._connection, sock=listener, backlog=_BACKLOG)
                    self._servers.append(server)
                else:
                    listener.listen(_BACKLOG)
                    loop.add_reader(listener, self._accept, listener, self._context)
        except OSError as error:
            raise StartError(f"{setting} {bind} cannot be bound: {error.strerror or error}") from error
        return f"{bind.rpartition(':')[0]}:{self._listeners[0].getsockname()[1]}"

    def _connection(self) -> Connection:
        return Connection(self._service, self._connections)

    def _accept(self, listener: socket, context: ssl.SSLContext) -> None:
        """Begin some handshakes."""
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                loop.remove_reader(listener)
                loop.call_later(_NO_FILE_S, self._accept_again, listener, context)
                return
            client.setblocking(False)
            handshake = loop.create_task(self._agree(client, context), name="TLS handshake")
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    def _accept_again(self, listener: socket, context: ssl.SSLContext) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener, context)

    async def _agree(self, client: socket, context: ssl.SSLContext) -> None:
        """Agree on TLS. Its protocol is there before a byte is read, whatever the loop had to do in between."""
        handshake = _Handshake(client, self._connections)
        if not self._connections.enter(handshake):
            client.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Secured(self._service, self._connections, handshake),
                client,
                ssl=context,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError; it is the client's
            client.close()
        finally:
            self._connections.leave(handshake)

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, answer open requests, and cancel those still open after `grace_s`."""
        if not self._listeners:
            return
        self._service.drains = True
        listeners, self._listeners = self._listeners, []
        for server in self._servers:
            server.close()
        for listener in listeners:
            if self._context is not None:
                asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        idle_grace_s = min(_IDLE_GRACE_S, grace_s / 2)
        ends_s = asyncio.get_running_loop().time() + idle_grace_s
        while self._connections and asyncio.get_running_loop().time() < ends_s:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(min(0.02, idle_grace_s))
        await self._connections.end(grace_s - idle_grace_s)
        await asyncio.gather(*self._handshakes, return_exceptions=True)


async def _bound(host: str, port: int) -> list[socket]:
    """A socket for each address of the host, for all addresses without one. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host or None, port, type=SOCK_STREAM, flags=AI_PASSIVE)
    bound: list[socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket(family, kind, protocol)
            bound.append(listener)
            listener.setblocking(False)
            listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            if family == AF_INET6:
                listener.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
            listener.bind(address)
    except OSError:
        for listener in bound:
            listener.close()
        raise
    return bound


class _Handshake(PooledConnection):
    """A client that TLS is not agreed on with yet."""

    def __init__(self, client: socket, connections: Connections) -> None:
        self._client = client
        self._connections = connections

    @override
    def close(self) -> None:
        self._connections.leave(self)
        with suppress(OSError):  # it has just ended
            self._client.shutdown(SHUT_RDWR)  # its transport sees the end, and closes it

    @override
    def on_timeout(self) -> None:
        self.close()


class _Secured(Connection):
    """A connection that begins when TLS is agreed on, in the place of its handshake."""

    def __init__(self, service: Service, connections: Connections, handshake: _Handshake) -> None:
        super().__init__(service, connections)
        self._handshake = handshake

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections.leave(self._handshake)
        super().connection_made(transport)
        secured: Any = transport  # that of TLS has one method more
        secured.set_read_buffer_limits(SMALL_READ)  # of what is not decrypted yet


def _rotating(tls: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A context that hands each handshake to the newest one."""

    def newest(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = tls()

    first = tls()
    first.sni_callback = newest
    return first
