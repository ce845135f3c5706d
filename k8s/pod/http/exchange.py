"""One request over HTTP and its response, and what answers it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from math import inf
from socket import SO_SNDBUF, SOL_SOCKET
from typing import Any
from urllib.parse import unquote

_JOINED_BYTES = 64 * 1024  # a larger body is not copied behind its head
_PIECE_BYTES = 128 * 1024
"""Of a large body over TLS, written in a turn of the event loop: encrypted in 0.7 ms."""


class HttpError(Exception):
    """A status of HTTP alone; `closes`: the connection cannot be used again; `allow`: the methods taken."""

    def __init__(
        self,
        status: int,
        name: str,
        message: str,
        *,
        closes: bool = False,
        retryable: bool = False,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.allow = allow
        self.status = status
        self.name = name
        self.closes = closes
        self.retryable = retryable


class Sink(ABC):
    """Takes a body as it comes, where it is too large to be kept."""

    @abstractmethod
    def add(self, data: bytes) -> None:
        """A part of the body came."""

    @abstractmethod
    def wait_s(self) -> float:
        """How long to wait (s) until more is read. Raises HttpError, or others."""


class Service:
    """Answers the requests of all connections. `drains`: each response is the last of its connection."""

    drains = False
    max_body_bytes = 64 * 1024
    """Of a service that reads no body: others bound theirs by `received`."""

    def exchange(self, transport: asyncio.Transport, on_answered: Callable[[], None]) -> Exchange:
        return Exchange(transport, self, on_answered)

    def open(self, exchange: Exchange) -> None:
        """The head is there: answer, or set how to serve it once its body is there. Raises HttpError, or others."""
        raise NotImplementedError

    def received(self, exchange: Exchange) -> float:
        """Check what has come of a body. Returns how long to wait (s) until more is read. Raises HttpError."""
        if exchange.length > self.max_body_bytes:
            message = f"the body is larger than {self.max_body_bytes} bytes: nothing here reads one"
            raise HttpError(413, "request_too_large", message, closes=True)
        return 0.0

    def discarded(self, size_bytes: int) -> float:
        """The same of a refused body."""
        del size_bytes
        return 0.0

    def fail(self, exchange: Exchange, error: Exception) -> None:
        """Answer with an error, or end the connection. After a ConnectionError the client is gone."""
        if isinstance(error, HttpError):
            exchange.answer(error.status, f"{error}\n".encode(), {"content-type": TEXT}, closes=error.closes)
        elif not isinstance(error, ConnectionError):
            exchange.abort()
            raise error

    def answered(self, exchange: Exchange, status: int) -> None:
        """A response is on its way."""


TEXT = "text/plain; charset=utf-8"


class Exchange:
    """A request and its response.

    `serve` is called once the body is there, and `on_late` at `deadline_s` (monotonic), if it is not answered then.
    `sink`: takes its body; then only the pauses in it are bounded. `on_gone`: its caller went away. `on_answered`: its
    response is written. `counted_bytes`: of a large body, what was checked. `upgrades`: it has a body behind an offer
    to upgrade, which is not taken. `peername`: of its client, host:port. `is_secure`: it came over TLS.
    """

    method = path = version = peername = ""
    url = b""
    body: bytes | bytearray = b""
    arrived_bytes = counted_bytes = 0
    has_head = has_body = is_answered = is_written = is_gone = upgrades = keeps_alive = is_secure = False
    error: HttpError | None = None
    repeated: tuple[str, ...] = ()
    started_s = 0.0
    deadline_s = inf
    serve: Callable[[Exchange], None] | None = None
    on_gone: Callable[[], object] | None = None
    on_late: Callable[[], None] | None = None
    sink: Sink | None = None
    _drained: asyncio.Future[None] | None = None
    _length = 0
    _task: asyncio.Task[None] | None = None
    _writes_chunks = False
    _unwritten = memoryview(b"")
    """The rest of a response that is written piece by piece."""
    _next_piece: asyncio.Handle | None = None

    def __init__(
        self, transport: asyncio.Transport, service: Service, on_answered: Callable[[], None] = lambda: None
    ) -> None:
        self._transport = transport
        self._service = service
        self._on_answered = on_answered
        self.headers: dict[bytes, bytes] = {}

    # The request.

    def begin(self, method: str, version: str, *, keeps_alive: bool) -> None:
        """Its headers are there."""
        self.has_head = True
        self.method, self.version, self.keeps_alive = method, version, keeps_alive
        self._length = int(self.headers.get(b"content-length", b"0"))
        path = self.url.partition(b"?")[0].partition(b"#")[0]
        if not path.startswith(b"/"):  # with scheme and host, as proxies have it
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        self.path = unquote(path, errors="replace")

    @property
    def is_chunked(self) -> bool:
        return b"transfer-encoding" in self.headers

    @property
    def length(self) -> int:
        """Bytes of the body, as far as they are known."""
        return max(self._length, self.arrived_bytes)

    @property
    def missing_bytes(self) -> int:
        missing = self._length - self.arrived_bytes
        return max(missing, 0)

    def add(self, data: bytes) -> None:
        """A part of the body came."""
        self.arrived_bytes += len(data)
        if self.is_answered:
            return
        if self.sink is not None:
            self.sink.add(data)
            return
        if not self.body:
            self.body = data
            return
        if isinstance(self.body, bytes):
            self.body = bytearray(self.body)
        self.body += data

    def take_body(self) -> bytes:
        """The whole body, which is not kept."""
        data, self.body = bytes(self.body), b""
        return data

    def header(self, name: bytes) -> str:
        """The first header of that name, which is in lower case; empty if there is none."""
        value = self.headers.get(name)
        return value.decode(errors="replace") if value else ""

    @property
    def peer_certificate(self) -> Mapping[str, Any]:
        """The verified certificate of the client, as `ssl` gives it; empty without one."""
        return self._transport.get_extra_info("peercert") or {}

    def header_of(self, name: str) -> str:
        return self.header(name.encode())

    # Its work.

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer by a task, which is cancelled when the caller goes away; its error is the answer."""
        self._task = asyncio.create_task(self._answer_by(work), name=f"{self.method} {self.path}")
        self.on_gone = self._task.cancel
        self.on_late = None

    async def _answer_by(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - `fail` logs what is not expected
            self.fail(error)
        finally:
            self._task = None
            if self.is_gone:
                self.leave()

    def gone(self) -> None:
        """The connection is lost."""
        self.is_gone = True
        self.resume()
        if self.on_gone is not None and not (self.is_answered and self._task is None):
            self.on_gone()
        if self._task is None:
            self.leave()

    def leave(self) -> None:
        """Release what it holds."""
        self.on_gone = self.on_late = self.serve = None

    # The response.

    def fail(self, error: Exception) -> None:
        """Answer with an error. After the head of a stream it can only end the connection."""
        self._service.fail(self, error)

    def abort(self) -> None:
        self._transport.abort()

    def answer(self, status: int, body: bytes, headers: Mapping[str, str], *, closes: bool = False) -> None:
        """Write the whole response, unless there is one already or the caller is gone."""
        if self.is_answered or self.is_gone:
            return
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        lines.append(f"{self.own_headers(headers)}content-length: {len(body)}\r\n")
        head = self._head(status, "".join(lines), closes=closes)
        if self.method == "HEAD":
            body = b""
        if len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            if self.is_secure and self.serve is not None:
                self.on_late = None
                self._unwritten = memoryview(body)
                self._write_piece()
                return
            self._transport.write(body)
        self._end()

    def _write_piece(self) -> None:
        """Write the next piece; those after it in other turns, once the client has read most of what is written."""
        self._next_piece = None
        if self._drained is not None or self.is_gone or self._transport.is_closing():
            return
        piece, self._unwritten = self._unwritten[:_PIECE_BYTES], self._unwritten[_PIECE_BYTES:]
        self._transport.write(bytes(piece))
        if self._unwritten:
            self._write_later()
        else:
            self._end()

    def _write_later(self) -> None:
        if self._next_piece is None:
            self._next_piece = asyncio.get_running_loop().call_soon(self._write_piece)

    def own_headers(self, headers: Mapping[str, str]) -> str:
        """Lines of further headers of a whole response that has these."""
        del headers
        return ""

    def begin_stream(self, headers: Mapping[str, str]) -> None:
        """Write the head of a response whose length is not known."""
        self._writes_chunks = self.version != "1.0"
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        if self._writes_chunks:
            lines.append("transfer-encoding: chunked\r\n")
        self._transport.write(self._head(200, "".join(lines), closes=not self._writes_chunks))

    def bound_unread(self, size_bytes: int) -> None:
        """Let the kernel keep no more than so much that the client has not read."""
        self._transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, size_bytes)

    async def write(self, data: bytes) -> None:
        """Write a part of it, once its caller has read most of the earlier parts. Raises ConnectionError."""
        if self._drained is not None:
            await self._drained
        if self.is_gone:
            raise ConnectionResetError("the caller went away")
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._writes_chunks else data)

    def pause(self) -> None:
        """The client has not read most of the written parts."""
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():  # a task that waited may be cancelled
            drained.set_result(None)
        if self._unwritten:
            self._write_later()

    def end_stream(self) -> None:
        if self._writes_chunks:
            self._transport.write(b"0\r\n\r\n")
        self._end()

    def _end(self) -> None:
        self.is_written = True
        self._on_answered()

    def _head(self, status: int, lines: str, *, closes: bool) -> bytes:
        self._service.answered(self, status)
        self.is_answered = True
        self.keeps_alive = self.keeps_alive and not closes and not self._service.drains
        if not self.keeps_alive:
            lines += "connection: close\r\n"
        elif self.version == "1.0":
            lines += "connection: keep-alive\r\n"
        return f"{_status_line(status)}{lines}date: {_date(int(time.time()))}\r\n\r\n".encode("latin-1")


@lru_cache(maxsize=64)
def _status_line(status: int) -> str:
    known = {each.value: each.phrase for each in HTTPStatus}
    return f"HTTP/1.1 {status} {known.get(status, 'Error')}\r\n"


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)
