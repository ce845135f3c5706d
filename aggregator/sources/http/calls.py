"""Receive the bodies of HTTP requests, within bounds of size and time, and identify their callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

import numpy as np
from aiohttp import web

from aggregator.errors import Code, InvalidRequest, TokenbatchError, shown
from aggregator.observability.metrics import Limit
from aggregator.request.request import Request
from aggregator.sources.calls.calls import Call, Calls, Read
from aggregator.sources.calls.load import RateLimit, Room
from aggregator.sources.http.errors import FieldError, HttpError
from aggregator.sources.parsing import SMALL_BYTES

_PATIENCE_S = 5.0
"""The longest that a body may take to arrive, as over gRPC."""
_LINGER_S = 2.0
"""How long the rest of a refused body is read, so that its sender reads the refusal."""
_BYTES_PER_S = 16.0 * 1024 * 1024
"""Of all large bodies together: reading them faster would hold up the event loop, and so all other callers.

The rest of refused bodies has this rate too, apart from the others: who is refused delays nobody who is not.
"""
_MAX_STRINGS = 16_384
"""Texts and names in one body, which cost more than their bytes; an embeddings request has 2,048 inputs at most."""
_QUOTE = ord('"')
_UNCOMPRESSED = ("", "identity")
_OF_CALLERS = ("x-tenant", "traceparent", "authorization")
_MAX_ID_CHARACTERS = 1024


class DeadlinePassed(TokenbatchError):
    """The caller waits no longer."""

    code = Code.DEADLINE_EXCEEDED


_CERTIFICATE_NAMES = {"URI": "peer_spiffe_id", "DNS": "peer_dns"}
_SPIFFE = "spiffe://"


class HttpContext:
    """A request's headers and connection, as `Callers` reads them."""

    __slots__ = ("_request",)

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        """The headers that tell who calls."""
        headers = self._request.headers
        return [(name, _text(headers[name])) for name in _OF_CALLERS if name in headers]

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The names of a verified client certificate, under gRPC's keys."""
        transport = self._request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        found: dict[str, list[bytes]] = {}
        if not certificate:
            return found
        for kind, value in certificate.get("subjectAltName", ()):
            key = _CERTIFICATE_NAMES.get(kind)
            if key == "peer_dns" or (key and value.startswith(_SPIFFE)):
                found.setdefault(key, []).append(value.encode())
        for names in certificate.get("subject", ()):
            for kind, value in names:
                if kind == "commonName":
                    found.setdefault("x509_common_name", []).append(value.encode())
        return found

    def peer(self) -> str:
        transport = self._request.transport
        address = transport.get_extra_info("peername") if transport is not None else None
        return f"http:{address[0]}:{address[1]}" if isinstance(address, tuple) else "http:gone"


class HttpCall(Call):
    """The origin of a request that came over HTTP. `as_base64`: how its vectors are written.

    `truncate_to`: as in `Options`.
    """

    __slots__ = ("as_base64", "request_id", "truncate_to")

    def __init__(self, room: Room, request_id: str) -> None:
        super().__init__(room)
        self.request_id = request_id
        self.as_base64 = False
        self.truncate_to = 0


@dataclass(eq=False)
class HttpCalls(Calls):
    """Calls whose messages are the bodies of HTTP requests; `timeout_s`: of a call that asks for no shorter one."""

    timeout_s: float = field(kw_only=True)
    _reading: RateLimit = field(init=False, default_factory=lambda: RateLimit(_BYTES_PER_S))
    _reading_refused: RateLimit = field(init=False, default_factory=lambda: RateLimit(_BYTES_PER_S))

    async def receive(
        self, http: web.BaseRequest, read: Read, new_call: Callable[[Room, str], Call] = HttpCall
    ) -> Request:
        """The request in a body. Raises TokenbatchError."""
        identity = self.callers.identify(HttpContext(http))
        deadline_s = self.clock() + self._wait_s(http)
        call = new_call(self.enter(identity.holders), request_id_of(http))
        data = await self.body(http, call.room)
        return await self.take(data, identity, deadline_s, call, read)

    async def answered(self, request: Request) -> None:
        """Wait until every input has its outcome. Raises DeadlinePassed; then it has left the queue."""
        try:
            await self.embed(request, request.deadline_s - self.clock())
        except TimeoutError:
            raise DeadlinePassed("the deadline passed before the answer was there") from None

    async def body(self, http: web.BaseRequest, room: Room) -> bytes:
        """The whole body; what has arrived counts for `room`. Raises TokenbatchError."""
        content = http.content
        if http.headers.get("content-encoding", "").strip().lower() not in _UNCOMPRESSED:
            raise HttpError(415, "unsupported_encoding", "the body is compressed: send it as it is", closes=True)
        length = http.content_length
        if length is not None and length > self.load.limits.max_message_bytes:
            raise self._too_large()
        if http.headers.get("expect", "").lower() == "100-continue":
            await http.writer.drain()
            if http.transport is not None:
                http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if content.is_eof():
            data = content.read_nowait(-1)
            if len(data) > self.load.limits.max_message_bytes:
                raise self._too_large()
            if len(data) > SMALL_BYTES:
                count_quotes(data, data, 0)
            return data
        return await self._slow_body(http, room, length or 0)

    async def _slow_body(self, http: web.BaseRequest, room: Room, length: int) -> bytes:
        """Read a body that has not arrived yet. If its length is known, room for all of it is taken before."""
        held = quotes = 0
        data = bytearray()
        try:
            if length:
                room.widen(length)
                held = length
            async with asyncio.timeout(_PATIENCE_S):
                while chunk := await self._chunk(http, len(data), self._reading):
                    data += chunk
                    quotes = count_quotes(data, chunk, quotes)
                    if len(data) > self.load.limits.max_message_bytes:
                        raise self._too_large()
                    if len(data) > held:
                        room.widen(len(data) - held)
                        held = len(data)
        except TimeoutError:
            self.load.refusal(Limit.SILENT)  # counted
            message = f"the complete body did not arrive within {_PATIENCE_S:g} s"
            raise HttpError(408, "request_timeout", message, closes=True, retryable=True) from None
        except (web.RequestPayloadError, ValueError):
            raise HttpError(400, "broken_body", "the body does not match its headers", closes=True) from None
        finally:
            room.charge(-held)  # `take` counts what has arrived
        return bytes(data)

    async def _chunk(self, http: web.BaseRequest, read_bytes: int, rate: RateLimit) -> bytes:
        """The next part of a body of which `read_bytes` are read; a large one waits for the others of its `rate`."""
        chunk = await http.content.readany()
        if read_bytes + len(chunk) > SMALL_BYTES:
            await asyncio.sleep(rate.wait_s(len(chunk), self.clock()))
        return chunk

    async def linger(self, http: web.BaseRequest) -> None:
        """Read the rest of a refused body."""
        with suppress(TimeoutError, web.RequestPayloadError, ValueError):
            async with asyncio.timeout(_LINGER_S):
                while await self._chunk(http, SMALL_BYTES, self._reading_refused):
                    pass

    def _too_large(self) -> HttpError:
        message = (
            f"the body is larger than {self.load.limits.max_message_bytes} bytes: send fewer inputs in one request"
        )
        return HttpError(413, "request_too_large", message, closes=True)

    def _wait_s(self, http: web.BaseRequest) -> float:
        """How long its caller waits (seconds): `x-request-timeout`, or the header of OpenAI's clients.

        The latter is sent by the library, not by its user, and is 0 for less than a second in Node: without a sense
        it is ignored.
        """
        asked = http.headers.get("x-request-timeout")
        of_library = _seconds(http.headers.get("x-stainless-timeout", ""))
        wait_s = inf if asked is None else _seconds(asked)
        if wait_s is None:
            raise InvalidRequest(f"the time-out {shown(asked or '')} is not a number of seconds above 0")
        return min(self.timeout_s, wait_s, of_library or inf)


def count_quotes(data: bytes | bytearray, last: bytes, found: int) -> int:
    """At least as many quotes begin and end a string of `data`, if `found` do before its `last` part.

    Raises FieldError for too many. A quote after a backslash counts as part of a string.
    """
    found += int(np.count_nonzero(np.frombuffer(last, np.uint8) == _QUOTE))
    found -= data.count(b'\\"', max(0, len(data) - len(last) - 1))
    if found > 2 * _MAX_STRINGS:
        raise FieldError(f"the body has more than {_MAX_STRINGS} texts and names: send fewer inputs in one request")
    return found


def _text(header: str) -> str:
    """A header's value. aiohttp decodes bytes that are not UTF-8 to surrogates, which cannot be encoded again."""
    return header.encode(errors="surrogateescape").decode(errors="replace")


def _seconds(value: str) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0.0 < seconds < inf else None


def request_id_of(http: web.BaseRequest) -> str:
    """The id that the caller chose, if any; empty if it is not valid in a header."""
    request_id = http.headers.get("x-request-id", "")[:_MAX_ID_CHARACTERS]
    return request_id if request_id.isprintable() and request_id.isascii() else ""
