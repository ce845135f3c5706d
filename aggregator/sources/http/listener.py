"""HTTP as a source: connections and their bounds, TLS, and the drain."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from typing_extensions import override

from aggregator.observability.metrics import HttpClosed
from aggregator.request.request import HTTP
from aggregator.settings.aggregator import HttpSettings, TlsSettings
from aggregator.sources.calls.calls import CallSource, Served
from aggregator.sources.calls.certificates import WatchedFiles, server_context, watch_certificates
from aggregator.sources.http.calls import HttpCalls
from aggregator.sources.http.errors import body_of
from aggregator.sources.http.service import OpenAIService
from k8s.process.addresses import split_address
from k8s.process.errors import StartError

_LOG = logging.getLogger(__name__)
_KEEPALIVE_S = 75.0
"""An idle connection is closed after this time, as is one whose headers take as long; proxies close theirs before."""
_UNREAD_S = 30.0
"""A connection whose client reads nothing of a response that waits for it is closed after this time."""
_HANDSHAKE_S = 20.0
_BACKLOG = 1024
_MAX_HEAD_BYTES = 16 * 1024
"""Of one request before its body, as `CallLimits.max_metadata_bytes`: aiohttp bounds each header and their number."""
_SHORTEST_S = 0.01  # to aiohttp, 0 is no limit
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
        self._server: _Server | None = None
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        host, port = split_address(self._bind)
        context = _rotating(self._certificates) if self._certificates is not None else None
        server = _Server(self._service, self._most_connections, context)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                server.accept, host or None, port, backlog=_BACKLOG
            )
        except OSError as error:
            raise StartError(f"http.bind {self._bind} cannot be bound: {error.strerror or error}") from error
        self._server = server
        self.address = f"{self._bind.rpartition(':')[0]}:{self._listener.sockets[0].getsockname()[1]}"
        _LOG.info("http listening", extra={"address": self.address, "tls": context is not None})

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, answer what is open, and cancel what is still open after `grace_s`."""
        if self._listener is None or self._server is None:
            self._batcher.close()
            return
        self._service.drains = True
        self._listener.close()
        idle_grace_s = min(_IDLE_GRACE_S, grace_s / 2)
        ends_s = asyncio.get_running_loop().time() + idle_grace_s
        while self._server.connections and asyncio.get_running_loop().time() < ends_s:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(min(0.02, idle_grace_s))
        self._server.end_handshakes()
        self._server.pre_shutdown()
        await self._server.shutdown(max(_SHORTEST_S, grace_s - idle_grace_s))
        self._batcher.close()


class _Server(web.Server):
    """A server whose connections are bounded in number, and answer broken HTTP in OpenAI's form.

    Where there are too many, the one that has been idle for longest gives way to a new one.
    """

    def __init__(self, service: OpenAIService, most_connections: int, context: ssl.SSLContext | None) -> None:
        super().__init__(self._serve, handler_cancellation=True)
        self.metrics = service.metrics
        self._handle = service.handle
        self._most = most_connections
        self._context = context
        self._open: set[_Connection | _Handshake] = set()
        self._idle: dict[_Connection | _Handshake, None] = {}
        """Those without a request, a handshake among them, the one that has been idle for longest first."""

    def accept(self) -> asyncio.Protocol:
        return self() if self._context is None else _Handshake(self, self._context)

    def enter(self, connection: _Connection | _Handshake) -> bool:
        """Count a connection in; False where there are too many, and each has a request."""
        if len(self._open) >= self._most:
            self.metrics.http_closed.add(1, HttpClosed.CROWDED)
            if not self._idle:
                return False
            idlest = next(iter(self._idle))
            self.leave(idlest)
            idlest.force_close()  # what is written is still sent
        self._open.add(connection)
        self._idle[connection] = None
        return True

    def leave(self, connection: _Connection | _Handshake) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def end_handshakes(self) -> None:
        for each in [each for each in self._open if isinstance(each, _Handshake)]:
            each.force_close()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("_Connection", request.protocol)
        self._idle.pop(connection, None)
        try:
            return await self._handle(request)
        finally:
            if connection in self._open:
                self._idle[connection] = None

    @override
    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_KEEPALIVE_S,
            lingering_time=0.0,  # `HttpCalls.linger` does
            auto_decompress=False,
            access_log=None,
        )


class _Connection(web.RequestHandler):
    __slots__ = ("_server", "_unread")

    def __init__(self, server: _Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self._unread: asyncio.TimerHandle | None = None
        self._parser: Any = _BoundedHeads(self._parser)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._server.enter(self):
            super().connection_made(transport)
        else:
            cast("asyncio.Transport", transport).abort()  # uvloop's is none by its class

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        self._server.leave(self)
        super().connection_lost(exc)

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = asyncio.get_running_loop().call_later(_UNREAD_S, self._close_unread)

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _close_unread(self) -> None:
        self._server.metrics.http_closed.add(1, HttpClosed.UNREAD)
        if self.transport is not None:
            self.transport.abort()

    @override
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer input that is not HTTP, or has too long a header; the message of aiohttp would quote it."""
        del message
        text = "the request is not HTTP, or its headers are too long"
        if status != 400:  # noqa: PLR2004 - every other one is a bug
            _LOG.error("a request failed", extra={"status": status, "error": type(exc).__name__})
            text = "internal error: see the log of the aggregator"
        kind = "invalid_request_error" if status == 400 else "api_error"  # noqa: PLR2004
        body = body_of(text, kind, None, "bad_request" if status == 400 else "internal_error")  # noqa: PLR2004
        response = web.Response(status=status, body=body, content_type="application/json")
        response.force_close()
        self._server.metrics.http_responses.add(1, str(status))
        return response


class _Handshake(asyncio.Protocol):
    """A connection until TLS is agreed on, which is then handed over to a `_Connection`."""

    def __init__(self, server: _Server, context: ssl.SSLContext) -> None:
        self._server = server
        self._context = context
        self._plain: asyncio.Transport | None = None
        self._early = bytearray()
        self._task: asyncio.Task[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = self._plain = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        if not self._server.enter(self):
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
        self._server.leave(self)

    def force_close(self) -> None:
        if self._plain is not None:
            self._plain.abort()

    async def _agree(self, plain: asyncio.Transport) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain, self, self._context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_S
            )
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError; it is the client's
            secured = None
        self._server.leave(self)
        if secured is None or secured.is_closing():
            plain.abort()
            return
        connection = self._server()
        secured.set_protocol(connection)
        connection.connection_made(secured)
        if self._early:
            connection.data_received(bytes(self._early))


class _BoundedHeads:
    """The parser of a connection, which refuses what comes before a body when it is longer than `_MAX_HEAD_BYTES`."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._body: Any = None
        self._held = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> Any:
        """Raises BadHttpMessage. What comes in one read with the end of a body is not counted."""
        if self._held <= _MAX_HEAD_BYTES:
            is_in_body = self._body is not None and not self._body.is_eof()
            fed = self._parser.feed_data(data)
            messages = fed[0]
            if messages:
                self._body = messages[-1][1]
                self._held = max(_length(message) for message, _ in messages)
            elif not is_in_body:
                self._held += len(data)
            if self._held <= _MAX_HEAD_BYTES:
                self._held = 0 if messages else self._held
                return fed
        raise BadHttpMessage("the headers are too long")


def _length(message: Any) -> int:
    return len(message.path) + sum(len(name) + len(value) + 4 for name, value in message.raw_headers)


def _rotating(certificates: WatchedFiles[ssl.SSLContext]) -> ssl.SSLContext:
    """A context that hands each handshake to the newest one."""

    def newest(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = certificates.get()

    first = certificates.get()
    first.sni_callback = newest
    return first
