"""One connection: its requests are parsed within bounds, served one after another, and answered in their order."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from math import inf
from typing import cast

import httptools
from typing_extensions import override

from k8s.pod.http.connections import SMALL_READ, TIMEOUT_S, UNREAD, Connections, PooledConnection, State
from k8s.pod.http.exchange import Exchange, HttpError, Service

_MAX_HEAD_BYTES = 16 * 1024
"""The largest request line with its headers, as `Limits.max_metadata_bytes`; and the largest framing of a body."""
_MAX_HEADERS = 128  # far more than clients and proxies send
_PIECE_BYTES = 4096
"""Bytes of heads and chunks that are parsed at a time: some 700 chunks of one byte, or half a millisecond."""
_TURN_PARTS = 256
"""Pieces and chunks after which a turn ends; each can cost a microsecond."""
_EMPTY_LINE = b"\r\n\r\n"
"""The end of a head, and of a body in chunks: the parser gets no byte of the next request before one is answered."""
_READS = State.IDLE, State.BODY, State.HEAD, State.LINGERING


class Connection(PooledConnection, asyncio.BufferedProtocol):
    """A client; `state` says what it waits for."""

    transport: asyncio.Transport
    _state_before = State.IDLE
    """The state that `WRITING` ends in."""
    _exchange: Exchange | None = None
    """The request that is read or served now."""
    _held = b""
    """Bytes that wait for their turn."""
    _tail = b""
    """The last bytes of a head, or of chunks, that is not complete: an empty line can be cut in two."""
    _resting: asyncio.TimerHandle | None = None
    """The end of a pause in which nothing is read: large bodies are read at a bounded rate."""
    _unproductive = 0
    """Bytes since the last request, or the last byte of a body: of a head, or of framing."""
    _parts = 0
    """Pieces and chunks parsed in this turn."""
    _is_broken = _is_paused = _is_secure = False
    _peername = ""

    def __init__(self, service: Service, connections: Connections) -> None:
        self._service = service
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        address = transport.get_extra_info("peername")  # asks the kernel: once a connection
        self._peername = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "gone"
        self._is_secure = transport.get_extra_info("sslcontext") is not None
        if not self._connections.enter(self):
            self.abort()

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self.state = State.CLOSING
        self._held = b""
        self._connections.leave(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.gone()

    @override
    def abort(self) -> None:
        self.transport.abort()

    @override
    def close(self) -> None:
        self.await_reader(State.CLOSING, self.transport.get_write_buffer_size())
        self._held = b""
        if not self._connections.is_busy(self):
            self._connections.set_lingering(self)
        self.transport.close()

    @override
    def on_timeout(self) -> None:
        exchange, self.due_s = self._exchange, inf
        match self.state:
            case State.IDLE | State.HEAD | State.LINGERING:
                self.close()
            case State.WRITING | State.CLOSING:
                if not self.is_read(self.transport.get_write_buffer_size()):
                    self._connections.on_closed(UNREAD)
                    self.abort()
            case State.BODY:
                message = f"the complete body did not arrive within {TIMEOUT_S[State.BODY]:g} s"
                self._now.fail(HttpError(408, "request_timeout", message, closes=True, retryable=True))
            case State.SERVING:
                if exchange is not None and exchange.on_late is not None:
                    exchange.on_late()

    # Reading.

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        exchange = self._exchange
        is_large = exchange is not None and exchange.missing_bytes > SMALL_READ
        return self._connections.large_buffer if is_large else self._connections.small_buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        if self.state is State.CLOSING:
            return
        data = bytes(self._connections.large_buffer[:nbytes])
        if self._held or not self._reads:
            self._held += data
            self._pause()
            if self.state is State.WRITING:
                self._connections.set_lingering(self)
        else:
            self._held = data
            self._take_turn()

    @property
    def _reads(self) -> bool:
        return self._resting is None and self.state in _READS

    @override
    def turn(self) -> None:
        """Parse what has come, to the end of one request at most, and serve it."""
        if self._reads:
            self._take_turn()

    def _take_turn(self) -> None:
        if self._held:
            self._read()
        self._advance()
        if self.state is not State.CLOSING:
            if self._held and self._reads:
                self._connections.later(self)
            self._pause()

    def _pause(self) -> None:
        """Read no more from the network while something waits already."""
        is_paused = bool(self._held) or self._resting is not None
        if is_paused is not self._is_paused and not self.transport.is_closing():
            self._is_paused = is_paused
            (self.transport.pause_reading if is_paused else self.transport.resume_reading)()

    def _read(self) -> None:
        data, at = self._held, 0
        self._parts = 0
        self._held = b""
        if self._is_broken:
            self._rest(self._service.discarded(len(data)))
            return
        end = len(data)
        view = memoryview(data)
        while at < end and self._parts < _TURN_PARTS:
            exchange = self._exchange
            if exchange is not None and (exchange.has_body or self._is_broken):
                break
            missing = exchange.missing_bytes if exchange is not None else 0
            piece = view[at : at + (missing or self._piece_bytes(data, at))]
            self._parts += 1
            at += len(piece)
            self._feed(piece)
        if at < end and not self._is_broken:
            self._held = data[at:]

    def _piece_bytes(self, data: bytes, at: int) -> int:
        """How much of it reaches to the next empty line, or to the end of the turn."""
        if self._tail:
            place = (self._tail + data[at : at + 3]).find(_EMPTY_LINE)
            if place >= 0:
                return place + len(_EMPTY_LINE) - len(self._tail)
        place = data.find(_EMPTY_LINE, at, at + _PIECE_BYTES)
        return place + len(_EMPTY_LINE) - at if place >= 0 else _PIECE_BYTES

    def _feed(self, piece: memoryview) -> None:
        self._unproductive += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # `_read_on` reads its body
        except httptools.HttpParserError:
            self._break()
        exchange = self._exchange
        if exchange is None or exchange.has_body:
            self._tail = b""
            return
        if not exchange.missing_bytes:
            self._tail = (self._tail + bytes(piece[-3:]))[-3:]
        if self._unproductive > _MAX_HEAD_BYTES:
            self._break()

    def _break(self) -> None:
        """The bytes are not HTTP: answer that, and parse nothing more."""
        exchange = self._exchange
        if exchange is None:
            exchange = self._begin()
        message = "the request is not HTTP, or its headers are too long"
        exchange.error = HttpError(400, "bad_request", message, closes=True)
        exchange.keeps_alive = False
        self._is_broken = True

    def on_message_begin(self) -> None:
        if self._exchange is not None:
            raise ValueError("the parser sees a request within a request")
        self._begin()

    def _begin(self) -> Exchange:
        exchange = self._exchange = self._service.exchange(self.transport, self._answered)
        exchange.peername, exchange.is_secure = self._peername, self._is_secure
        return exchange

    def on_url(self, part: bytes) -> None:
        self._now.url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        if exchange is None or exchange.has_head:  # a trailer
            return
        name = name.lower()
        if name not in exchange.headers:
            exchange.headers[name] = value
            return
        exchange.repeated += (name.decode("latin-1"),)
        if len(exchange.repeated) > _MAX_HEADERS:
            raise ValueError("the parser ends here")

    def on_headers_complete(self) -> None:
        exchange, parser = self._now, self._parser
        method, version = parser.get_method(), parser.get_http_version()
        coding = exchange.headers.get(b"transfer-encoding", b"chunked").strip().lower()
        names_host = "host" not in exchange.repeated if b"host" in exchange.headers else version == "1.0"
        headers = len(exchange.headers) + len(exchange.repeated)
        is_long = self._unproductive > _MAX_HEAD_BYTES or headers > _MAX_HEADERS
        if version not in {"1.0", "1.1"} or coding != b"chunked" or not names_host or is_long or method == b"CONNECT":
            raise ValueError("the parser ends here")
        is_sure = version == "1.1" or not exchange.is_chunked  # what 1.0 calls chunks ends nobody knows where
        exchange.begin(method.decode(), version, keeps_alive=is_sure and parser.should_keep_alive())
        self._unproductive = 0
        if parser.should_upgrade() and (exchange.is_chunked or exchange.missing_bytes):
            self._read_on(exchange)

    def _read_on(self, exchange: Exchange) -> None:
        """Read the body behind an offer to upgrade, which is not taken: the parser has ended there."""
        exchange.upgrades = True
        framing = b"transfer-encoding: chunked" if exchange.is_chunked else b"content-length: %d" % exchange.length
        self._parser = httptools.HttpRequestParser(_OnlyBody(self))
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)

    def on_body(self, data: bytes) -> None:
        self._unproductive = 0
        self._parts += 1
        self._now.add(data)

    def on_message_complete(self) -> None:
        exchange = self._now
        if not exchange.upgrades:
            exchange.has_body = True
            self._unproductive = 0

    def on_whole_body(self) -> None:
        """The body behind an offer to upgrade is there."""
        self._now.has_body = True
        self._unproductive = 0
        self._parser = httptools.HttpRequestParser(self)

    @property
    def _now(self) -> Exchange:
        assert self._exchange is not None, "A request is parsed that did not begin. This is a bug."
        return self._exchange

    def _rest(self, wait_s: float) -> None:
        """Go on when the bytes read have their turn."""
        if wait_s > 0.0:
            self._resting = asyncio.get_running_loop().call_later(wait_s, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self.turn()

    # Serving.

    def _advance(self) -> None:
        """Serve the request as far as it has come."""
        exchange = self._exchange
        if exchange is None:
            return
        if self.state is State.LINGERING:
            self._drain(exchange)
        elif exchange.has_head or exchange.error is not None:
            try:
                self._serve(exchange)
            except Exception as error:  # noqa: BLE001 - `fail` logs what is not expected
                exchange.fail(error)
        else:
            self.state = State.HEAD

    def _serve(self, exchange: Exchange) -> None:
        """Raises what the service raises."""
        if self.state is not State.BODY:
            exchange.started_s = time.monotonic()
            self.state, self.due_s = State.BODY, exchange.started_s + TIMEOUT_S[State.BODY]
            self._connections.set_busy(self)
            if exchange.error is None:
                self._service.open(exchange)
                if exchange.is_answered:
                    return
                awaits_go = not exchange.has_body and not exchange.arrived_bytes and exchange.version == "1.1"
                if awaits_go and exchange.header(b"expect").lower() == "100-continue":
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if exchange.error is not None:
            raise exchange.error
        if exchange.sink is not None:
            self.due_s = time.monotonic() + TIMEOUT_S[State.BODY]
            self._rest(exchange.sink.wait_s())
        elif not exchange.counted_bytes or exchange.counted_bytes < exchange.arrived_bytes:
            self._rest(self._service.received(exchange))
        if exchange.has_body and self._resting is None and exchange.serve is not None:
            self.state, self.due_s = State.SERVING, exchange.deadline_s
            exchange.serve(exchange)

    def _answered(self) -> None:
        """The response is written."""
        if self.state is not State.WRITING:
            self._finish()

    def _finish(self) -> None:
        """Go on with the next request, once the body of this one has come."""
        exchange = self._now
        if not exchange.has_body:
            self.state, self.due_s = State.LINGERING, time.monotonic() + TIMEOUT_S[State.LINGERING]
            self._connections.set_lingering(self)
            exchange.body = b""
            if not exchange.keeps_alive and self.transport.can_write_eof():
                with suppress(OSError):  # its client is gone, which nothing has told yet
                    self.transport.write_eof()
            self._count_discarded(exchange)
            return
        self._exchange = None
        exchange.leave()
        if exchange.keeps_alive:
            self.state = State.IDLE
            self._connections.set_idle(self)
            if self._held:
                self._connections.later(self)
        else:
            self.close()

    def _drain(self, exchange: Exchange) -> None:
        """Read the rest of the body of a request that is answered already."""
        if exchange.has_body:
            self._finish()
        else:
            self._count_discarded(exchange)

    def _count_discarded(self, exchange: Exchange) -> None:
        new, exchange.counted_bytes = exchange.arrived_bytes - exchange.counted_bytes, exchange.arrived_bytes
        if new and self._resting is None:
            self._rest(self._service.discarded(new))

    # Writing.

    @override
    def pause_writing(self) -> None:
        if self.state in (State.LINGERING, State.CLOSING, State.WRITING):
            return
        self._state_before = self.state
        self.await_reader(State.WRITING, self.transport.get_write_buffer_size())
        if self._exchange is not None:
            self._exchange.pause()
        (self._connections.set_lingering if self._held else self._connections.set_busy)(self)

    @override
    def resume_writing(self) -> None:
        if self.state is not State.WRITING:
            return
        exchange, self.state = self._exchange, self._state_before
        if exchange is None:
            self._connections.set_idle(self)
        elif exchange.is_written:
            self._finish()
        else:
            is_read = self.state is State.BODY
            self.due_s = time.monotonic() + TIMEOUT_S[State.BODY] if is_read else exchange.deadline_s
            self._connections.set_busy(self)
            exchange.resume()
        if self._held:
            self._connections.later(self)


class _OnlyBody:
    """What a parser tells of a body whose head another one has read."""

    def __init__(self, connection: Connection) -> None:
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_whole_body
