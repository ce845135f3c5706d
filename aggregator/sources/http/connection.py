"""One connection: its requests are parsed within bounds, served one after another, and answered in their order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from math import inf
from typing import cast

import httptools
from typing_extensions import override

from aggregator.observability.metrics import HttpClosed
from aggregator.sources.http.calls import Connections, Pooled
from aggregator.sources.http.errors import HttpError
from aggregator.sources.http.exchange import Exchange
from aggregator.sources.http.service import OpenAIService

_MAX_HEAD_BYTES = 16 * 1024
"""The largest request line with its headers, as `Limits.max_metadata_bytes`; and the largest framing of a body."""
_MAX_HEADERS = 128  # far more than clients and proxies send
_SLICE_BYTES = 4096
"""Bytes parsed at a time, except in a body of known length: all requests in them precede the first answer."""
_MAX_HELD_BYTES = 64 * 1024
"""Bytes of further requests while one is served: above it reading stops."""
_PATIENCE_S = 5.0
"""The longest that a body may take to arrive, as over gRPC."""
_LINGER_S = 2.0
"""How long the rest of a refused body is read, so that its sender reads the refusal."""
_UNREAD_S = 30.0
"""A connection whose client reads nothing of a response that waits for it is closed after this time."""


class Connection(Pooled):
    """`due_s` (monotonic): when `late` is called, while it is busy, and `close` while it is idle."""

    transport: asyncio.Transport
    is_lost = False
    _arriving: Exchange | None = None
    _held = b""
    _wait_s = 0.0
    _head_bytes = _headers = _hosts = _unproductive = 0
    """Sizes of the head that is parsed now; and the bytes since the last byte of a body."""
    _is_advancing = _is_broken = _is_busy = _is_closing = _is_full = False
    _is_paused = _is_resting = _is_serving = False

    def __init__(self, service: OpenAIService, connections: Connections) -> None:
        self._service = service
        self._connections = connections
        self._exchanges: deque[Exchange] = deque()
        self._parser = httptools.HttpRequestParser(self)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        if not self._connections.enter(self):
            self.transport.abort()

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_lost = True
        self._connections.leave(self)
        for exchange in self._exchanges:
            exchange.gone()
        self._exchanges.clear()
        self.resume_writing()

    @override
    def close(self) -> None:
        """Close it once every written byte is sent, or when the client reads none for a while."""
        self._is_closing = True
        self._held = b""
        self._set_busy(_UNREAD_S)
        self.transport.close()

    @override
    def late(self) -> None:
        """`due_s` has passed."""
        self.due_s = inf
        if self._is_full or self._is_closing:
            self._service.metrics.http_closed.add(1, HttpClosed.UNREAD)
            self.transport.abort()
            return
        if not self._exchanges:
            return
        exchange = self._exchanges[0]
        if exchange.is_answered:
            self.close()
        elif not self._is_serving:
            message = f"the complete body did not arrive within {_PATIENCE_S:g} s"
            exchange.fail(HttpError(408, "request_timeout", message, closes=True, retryable=True))
        elif exchange.on_late is not None:
            exchange.on_late()

    # Reading.

    @override
    def data_received(self, data: bytes) -> None:
        if not self._is_closing:
            self._held = self._held + data if self._held else data
            self._parse()

    @property
    def _is_blocked(self) -> bool:
        return self._is_serving or self._is_resting or self._is_full or self._is_closing

    def _parse(self) -> None:
        """Parse the bytes that came, up to the first whole request that is to be served."""
        data, at = self._held, 0
        self._held = b""
        view = memoryview(data)
        while at < len(data) and not self._is_blocked:
            arriving = self._arriving
            missing = arriving.missing_bytes if arriving is not None and arriving.has_head else 0
            at += self._feed(view[at : at + (missing or _SLICE_BYTES)])
            self._advance()
        if self._is_closing:
            return
        self._rest()
        if at < len(data):
            self._held = data[at:]
        is_paused = self._is_resting or len(self._held) > _MAX_HELD_BYTES
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            (self.transport.pause_reading if is_paused else self.transport.resume_reading)()

    def _feed(self, piece: memoryview) -> int:
        """Parse a piece; returns how much of it is."""
        size, arriving = len(piece), self._arriving
        if self._is_broken:
            self._wait_s = self._service.calls.discarded(size)
            return size
        if arriving is not None and arriving.upgrades:  # the parser takes its body for another protocol
            self.on_body(bytes(piece))
            if not arriving.missing_bytes:
                self._complete(arriving)
            return size
        self._unproductive += size
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            size = upgrade.args[0]
        except httptools.HttpParserError:
            self._break()
            return size
        if self._arriving is not None and self._unproductive > _MAX_HEAD_BYTES:
            self._break()
        return size

    def _break(self) -> None:
        """The bytes are not HTTP: answer that after all that came before, and parse nothing more."""
        exchange = self._arriving
        if exchange is None:
            exchange = self._begin()
        message = "the request is not HTTP, or its headers are too long"
        exchange.error = HttpError(400, "bad_request", message, closes=True)
        self._is_broken = True

    def on_message_begin(self) -> None:
        self._arriving = self._begin()
        self._head_bytes = self._headers = self._hosts = 0

    def _begin(self) -> Exchange:
        exchange = Exchange(self.transport, self._service.responses, self._answered)
        self._exchanges.append(exchange)
        return exchange

    def on_url(self, part: bytes) -> None:
        self._now.url += part
        self._head_bytes += len(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._now
        if not exchange.has_head:  # else a trailer
            self._headers += 1
            self._head_bytes += len(name) + len(value) + 4
            name = name.lower()
            self._hosts += name == b"host"
            if name in exchange.headers:
                exchange.repeated += (name.decode("latin-1"),)
            else:
                exchange.headers[name] = value

    def on_headers_complete(self) -> None:
        exchange, parser = self._now, self._parser
        method, version, upgrades = parser.get_method(), parser.get_http_version(), parser.should_upgrade()
        coding = exchange.headers.get(b"transfer-encoding", b"chunked").strip().lower()
        is_tunnel = upgrades and (exchange.is_chunked or method == b"CONNECT")
        names_host = self._hosts == 1 or (version == "1.0" and not self._hosts)
        is_long = self._head_bytes > _MAX_HEAD_BYTES or self._headers > _MAX_HEADERS
        if version not in {"1.0", "1.1"} or coding != b"chunked" or not names_host or is_tunnel or is_long:
            raise ValueError("the parser ends here")
        exchange.begin(method.decode(), version, keeps_alive=parser.should_keep_alive())
        exchange.upgrades = upgrades and exchange.missing_bytes > 0
        self._unproductive = 0

    def on_body(self, data: bytes) -> None:
        self._unproductive = 0
        self._now.add(data)

    def on_message_complete(self) -> None:
        exchange = self._now
        if not exchange.upgrades:
            self._complete(exchange)

    @property
    def _now(self) -> Exchange:
        assert self._arriving is not None, "A request is parsed that did not begin. This is a bug."
        return self._arriving

    def _complete(self, exchange: Exchange) -> None:
        exchange.has_body = True
        self._arriving = None
        self._unproductive = 0

    def _rest(self) -> None:
        """Go on when the bytes read have their turn: large bodies are read at a bounded rate."""
        if self._wait_s > 0.0 and not self._is_resting:
            self._is_resting = True
            asyncio.get_running_loop().call_later(self._wait_s, self._rested)
            self._wait_s = 0.0

    def _rested(self) -> None:
        self._is_resting = False
        self._go_on()

    # Serving.

    def _advance(self) -> None:
        """Serve the first request as far as it is there, and those after it."""
        self._is_advancing = True
        while self._exchanges and not self._is_blocked:
            exchange = self._exchanges[0]
            if not exchange.is_answered:
                if not exchange.has_head and exchange.error is None:
                    break
                try:
                    self._serve(exchange)
                except Exception as error:  # noqa: BLE001 - `fail` logs what is not expected
                    exchange.fail(error)
                if not exchange.is_answered:
                    break
            elif exchange.has_body:
                self._exchanges.popleft()
                exchange.leave()
                if not exchange.keeps_alive:
                    self.close()
            else:
                self._linger(exchange)
                break
        self._is_advancing = False
        is_open = self._exchanges and (self._exchanges[0].is_open or self._exchanges[0].error)
        if self._is_busy and not is_open and not self._is_blocked:
            self._is_busy = False
            self._connections.set_idle(self)

    def _serve(self, exchange: Exchange) -> None:
        """Raises TokenbatchError."""
        if not exchange.is_open:
            exchange.is_open = True
            exchange.started_s = time.monotonic()
            self._set_busy(_PATIENCE_S)
            if exchange.error is None:
                self._service.open(exchange)
                if not exchange.has_body and exchange.header(b"expect").lower() == "100-continue":
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if exchange.error is not None:
            raise exchange.error
        if exchange.serve is None:
            return
        if not exchange.counted_bytes or exchange.counted_bytes < exchange.arrived_bytes:
            self._wait_s = self._service.calls.received(exchange)
        if exchange.has_body:
            self._rest()
        if exchange.has_body and not self._is_resting:
            self._is_serving = True
            self.due_s = exchange.deadline_s
            exchange.serve(exchange)

    def _linger(self, exchange: Exchange) -> None:
        """Read the rest of the body of a request that is answered already."""
        if not exchange.is_lingering:
            exchange.is_lingering = True
            self._set_busy(_LINGER_S)
            exchange.body = b""
            if not exchange.keeps_alive and self.transport.can_write_eof():
                self.transport.write_eof()
        new, exchange.counted_bytes = exchange.arrived_bytes - exchange.counted_bytes, exchange.arrived_bytes
        self._wait_s = self._service.calls.discarded(new)

    def _go_on(self) -> None:
        if not self.is_lost:
            self._advance()
            self._parse()

    def _set_busy(self, patience_s: float) -> None:
        self.due_s = time.monotonic() + patience_s
        if not self._is_busy:
            self._is_busy = True
            self._connections.set_busy(self)

    # Writing.

    def _answered(self) -> None:
        """A response is written: go on, once it is handed to the network and the rest of its request has come."""
        self._is_serving = False
        if self._held or len(self._exchanges) > 1:
            asyncio.get_running_loop().call_soon(self._go_on)
        elif not self._is_advancing:
            self._advance()

    @override
    def pause_writing(self) -> None:
        self._is_full = True
        self._set_busy(_UNREAD_S)
        if self._exchanges:
            self._exchanges[0].pause()

    @override
    def resume_writing(self) -> None:
        self._is_full = False
        self.due_s = inf
        if self._exchanges:
            self._exchanges[0].is_lingering = False  # if it does, it begins again
            self._exchanges[0].resume()
        self._go_on()
