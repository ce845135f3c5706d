"""Stream events to the browsers that look at the page: one event for all, made only while there are any."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import msgspec

from k8s.pod.http.exchange import TEXT, Exchange

MOST_VIEWERS = 256  # each event goes to each of them
EVERY_S = 0.5  # bars move smoothly, and reading the state costs 0.7 % of a core
_SEND_BUFFER_BYTES = 64 * 1024  # a browser that does not read fills it, and is noticed
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


class Feed(Protocol):
    """The state that viewers see; called on a thread."""

    def read(self, *, full: bool) -> tuple[object, object]:
        """The events since the last call; and, if `full`, the whole state for a new viewer, else None."""
        ...

    def snapshot(self) -> Mapping[str, object] | None:
        """The whole state for a page that is loaded, and whether it `has_rates`; None where it cannot be read now."""
        ...


class Viewers:
    """The browsers. One that reads slowly skips events, and then gets the whole state again."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._needs_all: dict[Exchange, bool] = {}
        self._next: asyncio.Future[tuple[int, bytes, bytes]] | None = None
        self._number = 0
        self._sending: asyncio.Task[None] | None = None

    def add(self, exchange: Exchange) -> None:
        if len(self._needs_all) >= MOST_VIEWERS:
            refusal = b"too many viewers: close a page\n"
            exchange.answer(503, refusal, {"content-type": TEXT, "retry-after": "10"})
            return
        self._needs_all[exchange] = True
        if self._sending is None:
            self._next = asyncio.get_running_loop().create_future()
            self._sending = asyncio.create_task(self._send(), name="viewers")
        exchange.start(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            exchange.bound_unread(_SEND_BUFFER_BYTES)
            exchange.begin_stream(_HEADERS)
            await exchange.write(b"retry: 1000\n\n")
            seen = -1
            while self._next is not None:
                number, event, whole = await asyncio.shield(self._next)
                needs_all = self._needs_all[exchange] or number > seen + 1
                if needs_all and not whole:
                    self._needs_all[exchange] = True
                    continue
                self._needs_all[exchange], seen = False, number
                await exchange.write(whole if needs_all else event)
        finally:
            del self._needs_all[exchange]

    async def _send(self) -> None:
        """Until nobody looks."""
        try:
            while self._needs_all:
                await asyncio.sleep(EVERY_S)
                full = any(self._needs_all.values())
                event, whole = await asyncio.to_thread(self._feed.read, full=full)
                self._number += 1
                now, self._next = self._next, asyncio.get_running_loop().create_future()
                if now is not None:
                    now.set_result((self._number, _encoded(event), b"" if whole is None else _encoded(whole)))
        finally:
            last, self._next, self._sending = self._next, None, None
            if last is not None:
                last.cancel()


def _encoded(event: object) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
