"""One request over HTTP and its response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from math import ceil, inf
from typing import Any
from urllib.parse import unquote

from aggregator.errors import InvalidRequest, shown
from aggregator.observability.calls import CANCELLED, CallTelemetry, HttpCall
from aggregator.sources.calls.callers import CertificateNames, Identity
from aggregator.sources.calls.calls import failure_of
from aggregator.sources.calls.load import Room
from aggregator.sources.http.errors import HttpError, described, described_error

MAX_ID_CHARACTERS = 1024  # it comes back with every answer
_SPIFFE = "spiffe://"


@dataclass(eq=False, slots=True)
class Responses:
    """The state that the responses of all connections share; `drains`: each is the last of its connection."""

    telemetry: CallTelemetry
    drains: bool = False


class Exchange:
    """It holds `room` until its response is handed to the network and its body has come, or its caller goes away.

    `serve` is called once the body is there, and `on_late` at `deadline_s` (monotonic), if it is not answered then.
    `on_gone`: its caller went away. `on_answered`: its response is written. `counted_bytes`: of a large body, what was
    checked.
    """

    method = path = version = ""
    url = b""
    body: bytes | bytearray = b""
    arrived_bytes = counted_bytes = quotes = 0
    has_head = has_body = is_open = is_answered = is_gone = is_lingering = upgrades = keeps_alive = False
    error: HttpError | None = None
    identity: Identity
    repeated: tuple[str, ...] = ()
    room: Room | None = None
    call: HttpCall | None = None
    started_s = 0.0
    deadline_s = inf
    serve: Callable[[Exchange], None] | None = None
    on_gone: Callable[[], object] | None = None
    on_late: Callable[[], None] | None = None
    _drained: asyncio.Future[None] | None = None
    _length = 0
    _task: asyncio.Task[None] | None = None
    _writes_chunks = False

    def __init__(
        self, transport: asyncio.Transport, responses: Responses, on_answered: Callable[[], None] = lambda: None
    ) -> None:
        self._transport = transport
        self._responses = responses
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
        return self.length - self.arrived_bytes

    def add(self, data: bytes) -> None:
        """A part of the body came."""
        self.arrived_bytes += len(data)
        if self.is_answered:
            return
        if not self.body:
            self.body = data
            return
        if isinstance(self.body, bytes):
            self.body = bytearray(self.body)
        self.body += data

    def trace(self, route: str) -> None:
        """Open its span; `route`: the pattern of its path, empty if there is none."""
        secure = self._transport.get_extra_info("sslcontext") is not None
        trace = self.header(b"traceparent")
        self.call = self._responses.telemetry.http(self.method, self.path, route, trace, secure=secure)

    def take_body(self) -> bytes:
        """The whole body, which is not kept."""
        data, self.body = bytes(self.body), b""
        return data

    @property
    def held_room(self) -> Room:
        assert self.room is not None, "A request is served that has no room. This is a bug."
        return self.room

    def header(self, name: bytes) -> str:
        """The first header of that name, which is in lower case; empty if there is none."""
        value = self.headers.get(name)
        return value.decode(errors="replace") if value else ""

    def header_of(self, name: str) -> str:
        return self.header(name.encode())

    def wait_s(self) -> float:
        """How long its caller waits: `x-request-timeout`, or the header of OpenAI's clients. Raises InvalidRequest.

        The latter is sent by the library, not by its user, and is 0 for less than a second in Node: without a sense
        it is ignored.
        """
        asked = self.header(b"x-request-timeout")
        wait_s = _seconds(asked) if b"x-request-timeout" in self.headers else inf
        if wait_s is None:
            raise InvalidRequest(f"the time-out {shown(asked)} is not a number of seconds above 0")
        return min(wait_s, _seconds(self.header(b"x-stainless-timeout")) or inf)

    @property
    def request_id(self) -> str:
        """The id that the caller chose, if any; empty if it is not valid in a header."""
        request_id = self.header(b"x-request-id")[:MAX_ID_CHARACTERS]
        return request_id if request_id.isprintable() and request_id.isascii() else ""

    def peer(self) -> str:
        address = self._transport.get_extra_info("peername")
        return f"http:{address[0]}:{address[1]}" if isinstance(address, tuple) else "http:gone"

    def certificate(self) -> CertificateNames:
        """The names of a verified client certificate."""
        found = self._transport.get_extra_info("peercert") or {}
        names = found.get("subjectAltName", ())
        subject = [pair for pairs in found.get("subject", ()) for pair in pairs]
        return CertificateNames(
            spiffe_ids=[value.encode() for kind, value in names if kind == "URI" and value.startswith(_SPIFFE)],
            common_names=[value.encode() for kind, value in subject if kind == "commonName"],
            dns_names=[value.encode() for kind, value in names if kind == "DNS"],
        )

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
        if self.room is not None:
            self.room.leave()
            self.room = None
        if self.call is not None:
            self.call.end()
            self.call = None
        self.on_gone = self.on_late = self.serve = None

    # The response.

    def fail(self, error: Exception) -> None:
        """Answer with an error. After the head of a stream it can only end the connection."""
        if isinstance(error, ConnectionError):
            self.failed_late(CANCELLED)
        elif self.is_answered:
            self.failed_late(failure_of(error).code.name)
            self._transport.abort()
        elif isinstance(error, HttpError):
            self.answer(*described_error(error), closes=error.closes)
        else:
            self.answer(*described(failure_of(error)))

    def failed_late(self, code: str) -> None:
        """It failed with this code after its status was sent."""
        if self.call is not None:
            self.call.failed(code)

    def answer(self, status: int, body: bytes, headers: Mapping[str, str], *, closes: bool = False) -> None:
        """Write the whole response, unless there is one already or the caller is gone."""
        if self.is_answered or self.is_gone:
            return
        room = self.room
        if room is not None and len(body) > room.size_bytes:  # from now on it holds the response
            room.charge(len(body) - room.size_bytes)
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        if "x-request-id" not in headers and (request_id := self.request_id):
            lines.append(f"x-request-id: {request_id}\r\n")
        if "content-type" not in headers:
            lines.append("content-type: application/json\r\n")
        duration_ms = ceil((time.monotonic() - self.started_s) * 1e3)
        lines.append(f"openai-processing-ms: {duration_ms}\r\ncontent-length: {len(body)}\r\n")
        head = self._head(status, "".join(lines), closes=closes)
        self._transport.write(head if self.method == "HEAD" else head + body)
        self._on_answered()

    def begin_stream(self, headers: Mapping[str, str]) -> None:
        """Write the head of a response whose length is not known."""
        self._writes_chunks = self.version != "1.0"
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        if self._writes_chunks:
            lines.append("transfer-encoding: chunked\r\n")
        self._transport.write(self._head(200, "".join(lines), closes=not self._writes_chunks))

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

    def end_stream(self) -> None:
        if self._writes_chunks:
            self._transport.write(b"0\r\n\r\n")
        self._on_answered()

    def _head(self, status: int, lines: str, *, closes: bool) -> bytes:
        self._responses.telemetry.metrics.http_responses.add(1, str(status))
        if self.call is not None:
            self.call.status = status
        self.is_answered = True
        self.keeps_alive = self.keeps_alive and not closes and not self._responses.drains
        if not self.keeps_alive:
            lines += "connection: close\r\n"
        elif self.version == "1.0":
            lines += "connection: keep-alive\r\n"
        return f"{_status_line(status)}{lines}date: {_date(int(time.time()))}\r\n\r\n".encode("latin-1")


def _seconds(value: str) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0.0 < seconds < inf else None


@lru_cache(maxsize=64)
def _status_line(status: int) -> str:
    known = {each.value: each.phrase for each in HTTPStatus}
    return f"HTTP/1.1 {status} {known.get(status, 'Error')}\r\n"


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)
