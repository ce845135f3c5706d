"""The limits of calls over HTTP: their callers, and the size and the speed of bodies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from aggregator.sources.calls.callers import check_repeated
from aggregator.sources.calls.calls import Calls
from aggregator.sources.calls.load import RateLimit
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.exchange import HttpExchange
from aggregator.sources.wire.decode import SMALL_BYTES
from k8s.pod.http.exchange import HttpError

_BYTES_PER_S = 16.0 * 1024 * 1024
"""The rate of all large bodies together: reading them faster would hold up the event loop, and so all other callers.

Refused bodies are drained at this rate too, under a limit of their own, so that they slow no accepted one.
"""
_MAX_STRINGS = 16_384
"""Texts and names in one body, which cost more than their bytes; an embeddings request has 2,048 inputs at most."""
_QUOTE = ord('"')
_UNCOMPRESSED = ("", "identity")


@dataclass(eq=False)
class HttpCalls(Calls):
    """Calls whose messages are the bodies of HTTP requests; `timeout_s`: of a call that asks for no shorter one."""

    timeout_s: float = field(kw_only=True)
    _reading: RateLimit = field(init=False, default_factory=lambda: RateLimit(_BYTES_PER_S))
    _reading_refused: RateLimit = field(init=False, default_factory=lambda: RateLimit(_BYTES_PER_S))

    def enter(self, exchange: HttpExchange) -> None:
        """Identify its caller, and take room for it. Raises TokenbatchError."""
        check_repeated(exchange.repeated)
        exchange.identity = self.callers.identify(exchange.header_of, exchange.peer, exchange.certificate)
        exchange.deadline_s = self.clock() + min(self.timeout_s, exchange.wait_s())
        exchange.room = self.load.enter(exchange.identity.holders)

    def expect(self, exchange: HttpExchange) -> None:
        """Check what its headers say of its body. Raises HttpError."""
        self.expect_uncompressed(exchange)
        if exchange.length > self.load.limits.max_message_bytes:
            raise self._too_large()

    @staticmethod
    def expect_uncompressed(exchange: HttpExchange) -> None:
        """Refuse a compressed body. Its size is for the caller to bound. Raises HttpError."""
        if exchange.header(b"content-encoding").strip().lower() not in _UNCOMPRESSED:
            raise HttpError(415, "unsupported_encoding", "the body is compressed: send it as it is", closes=True)

    def received(self, exchange: HttpExchange) -> float:
        """Count what has come of its body. Returns how long to wait (s) until more is read. Raises TokenbatchError.

        What it announces takes no room.
        """
        room, size_bytes = exchange.held_room, exchange.arrived_bytes
        if size_bytes > self.load.limits.max_message_bytes:
            raise self._too_large()
        if exchange.has_body:
            room.arrived()
        elif not room.size_bytes:
            room.arrives(exchange.give_way)
        if size_bytes > room.size_bytes:
            room.widen(size_bytes - room.size_bytes)
        if size_bytes <= SMALL_BYTES:
            return 0.0
        new = exchange.body[exchange.counted_bytes :]
        exchange.counted_bytes = size_bytes
        exchange.quotes = count_quotes(exchange.body, new, exchange.quotes)
        return self._reading.wait_s(len(new), self.clock())

    def discarded(self, size_bytes: int) -> float:
        """The same of a refused body."""
        return self._reading_refused.wait_s(size_bytes, self.clock())

    def _too_large(self) -> HttpError:
        message = (
            f"the body is larger than {self.load.limits.max_message_bytes} bytes: send fewer inputs in one request"
        )
        return HttpError(413, "request_too_large", message, closes=True)


def count_quotes(data: bytes | bytearray, last: bytes | bytearray, found: int) -> int:
    """At least as many quotes begin and end a string of `data`, if `found` do before its `last` part.

    Raises FieldError for too many. A quote after a backslash counts as part of a string.
    """
    found += int(np.count_nonzero(np.frombuffer(last, np.uint8) == _QUOTE))
    found -= data.count(b'\\"', max(0, len(data) - len(last) - 1))
    if found > 2 * _MAX_STRINGS:
        raise FieldError(f"the body has more than {_MAX_STRINGS} texts and names: send fewer inputs in one request")
    return found
