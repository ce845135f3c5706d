"""HTTP as a source: connections and their bounds, TLS, and the drain."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

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
from k8s.process.errors import StartError
from k8s.process.monitoring import split_address

_LOG = logging.getLogger(__name__)
_MOST_CONNECTIONS = 4096
"""Connections above this number are closed as they come, as gRPC does."""
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
        self._server: _Server | None = None
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises StartError when the address cannot be bound."""
        host, port = split_address(self._bind)
        server = _Server(self._service)
        context = _rotating(self._certificates) if self._certificates is not None else None
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                server,
                host or None,
                port,
                ssl=context,
                backlog=_BACKLOG,
                ssl_handshake_timeout=_HANDSHAKE_S if context is not None else None,
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
        self._server.pre_shutdown()
        await self._server.shutdown(max(_SHORTEST_S, grace_s - idle_grace_s))
        self._batcher.close()


class _Server(web.Server):
    """A server whose connections are bounded in number, and answer broken HTTP in OpenAI's form."""

    def __init__(self, service: OpenAIService) -> None:
        super().__init__(service.handle, handler_cancellation=True)
        self.metrics = service.metrics

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
        if len(self._server.connections) >= _MOST_CONNECTIONS:
            assert isinstance(transport, asyncio.WriteTransport)
            self._server.metrics.http_closed.add(1, HttpClosed.CROWDED)
            transport.abort()
            return
        super().connection_made(transport)

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
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
