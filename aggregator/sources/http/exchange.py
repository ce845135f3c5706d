"""One call over HTTP: what it holds, who makes it, how long it waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import ceil, inf

from typing_extensions import override

from aggregator.errors import InvalidRequest, Overloaded, shown
from aggregator.observability.calls import HttpCall
from aggregator.sources.calls.callers import CertificateNames, Identity
from aggregator.sources.calls.load import Room
from k8s.pod.http.exchange import Exchange

MAX_ID_CHARACTERS = 1024  # it comes back with every answer
_SPIFFE = "spiffe://"


class HttpExchange(Exchange):
    """It holds `room` until its response is handed to the network and its body has come, or its caller goes away."""

    identity: Identity
    quotes = 0
    room: Room | None = None
    call: HttpCall | None = None
    """Its span and its duration."""

    @property
    def held_room(self) -> Room:
        assert self.room is not None, "A request is served that has no room. This is a bug."
        return self.room

    def give_way(self, error: Overloaded) -> None:
        """Others need the room of its body, which arrives slowly."""
        self.body = b""
        self.held_room.charge(-self.held_room.size_bytes)
        self.fail(error)

    def wait_s(self) -> float:
        """How long its caller waits: `x-request-timeout`, or the header of OpenAI's clients. Raises InvalidRequest.

        The latter is sent by the library, not by its user, and is 0 for less than a second in Node: without a sense
        it is ignored.
        """
        asked = self.header(b"x-request-timeout")
        wait_s = _seconds(asked) if b"x-request-timeout" in self.headers else inf
        if wait_s is None:
            message = f"x-request-timeout is {shown(asked)}: expected a number of seconds above 0"
            raise InvalidRequest(message, "x-request-timeout")
        return min(wait_s, _seconds(self.header(b"x-stainless-timeout")) or inf)

    @property
    def request_id(self) -> str:
        """The id that the caller chose, if any; empty if it is not valid in a header."""
        request_id = self.header(b"x-request-id")[:MAX_ID_CHARACTERS]
        return request_id if request_id.isprintable() and request_id.isascii() else ""

    def peer(self) -> str:
        return f"http:{self.peername}"

    def certificate(self) -> CertificateNames:
        """The names of a verified client certificate."""
        found = self.peer_certificate
        names = found.get("subjectAltName", ())
        subject = [pair for pairs in found.get("subject", ()) for pair in pairs]
        return CertificateNames(
            spiffe_ids=[value.encode() for kind, value in names if kind == "URI" and value.startswith(_SPIFFE)],
            common_names=[value.encode() for kind, value in subject if kind == "commonName"],
            dns_names=[value.encode() for kind, value in names if kind == "DNS"],
        )

    @override
    def leave(self) -> None:
        if self.room is not None:
            self.room.leave()
            self.room = None
        if self.call is not None:
            self.call.end()
            self.call = None
        super().leave()

    def failed_late(self, code: str) -> None:
        """It failed with this code after its status was sent."""
        if self.call is not None:
            self.call.failed(code)

    @override
    def own_headers(self, headers: Mapping[str, str]) -> str:
        lines = f"openai-processing-ms: {ceil((time.monotonic() - self.started_s) * 1e3)}\r\n"
        if "content-type" not in headers:
            lines += "content-type: application/json\r\n"
        if "x-request-id" not in headers and (request_id := self.request_id):
            lines += f"x-request-id: {request_id}\r\n"
        return lines

    @override
    def answer(self, status: int, body: bytes, headers: Mapping[str, str], *, closes: bool = False) -> None:
        room = self.room
        if room is not None and not (self.is_answered or self.is_gone) and len(body) > room.size_bytes:
            room.charge(len(body) - room.size_bytes)  # from now on it holds the response
        super().answer(status, body, headers, closes=closes)


def _seconds(value: str) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0.0 < seconds < inf else None
