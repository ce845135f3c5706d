"""Stream events to the browsers that look at the page: from one thread, which runs only while there are any.

A browser that reads slowly gets the latest state when it reads again: only one event is kept for it.
"""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from threading import Condition, Thread
from typing import Protocol

import msgspec

_LOG = logging.getLogger(__name__)
MOST_VIEWERS = 256  # one thread writes to all of them, each event to each
EVERY_S = 0.5  # bars move smoothly, and reading the state costs 0.7 % of a core
_STUCK_S = 15.0
"""A browser that reads nothing for this time is disconnected; it connects again by itself."""
_SEND_BUFFER_BYTES = 64 * 1024  # a browser that does not read fills it, and is noticed
_GONE_MS = 20_000  # the kernel gives up on a host that vanished
_HEADERS = (
    b"HTTP/1.0 200 OK\r\n"
    b"Content-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\n"
    b"X-Accel-Buffering: no\r\n"
    b"\r\n"
    b"retry: 1000\n\n"
)


class Feed(Protocol):
    """The state that viewers see; called on their thread.

    A Protocol, because it is read by `reports`, a layer above this one.
    """

    def read(self, *, full: bool) -> tuple[object, object]:
        """The events since the last call; and, if `full`, the whole state for a new viewer, else None."""
        ...


class Viewers:
    """The connections of all viewers."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._viewers: list[_Viewer] = []
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._viewers)

    def add(self, connection: socket.socket) -> bool:
        """Take over a connection whose request was read; False if there are too many viewers."""
        with self._changed:
            if self._closed or len(self._viewers) >= MOST_VIEWERS:
                return False
            self._viewers.append(_Viewer(connection))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="viewers", daemon=True)
                self._thread.start()
            self._changed.notify()
        return True

    def has(self, connection: object) -> bool:
        with self._changed:
            return any(viewer.connection is connection for viewer in self._viewers)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            while self._goes_on():
                self._send()
        except Exception:  # noqa: BLE001 - the browsers connect again, and the aggregator goes on
            _LOG.exception("the page's events ended")
            with self._changed:
                self._end()

    def _goes_on(self) -> bool:
        """Wait for the time of the next event; False when it has no viewer."""
        next_s = time.monotonic() + EVERY_S
        with self._changed:
            while not self._closed and self._viewers:
                left_s = next_s - time.monotonic()
                if left_s <= 0:
                    return True
                self._changed.wait(left_s)
            self._end()
        return False

    def _end(self) -> None:
        """Disconnect all; the next viewer gets another thread."""
        for viewer in self._viewers:
            viewer.close()
        self._viewers.clear()
        self._thread = None

    def _send(self) -> None:
        with self._changed:
            viewers = list(self._viewers)
        event, all_of_it = self._feed.read(full=any(viewer.needs_all for viewer in viewers))
        encoded, encoded_all = _encoded(event), None if all_of_it is None else _encoded(all_of_it)
        now_s = time.monotonic()
        gone = [viewer for viewer in viewers if not viewer.send(encoded, encoded_all, now_s)]
        for viewer in gone:
            viewer.close()
        with self._changed:
            self._viewers = [viewer for viewer in self._viewers if viewer not in gone]


class _Viewer:
    """One connection; `needs_all`: it missed an event, or got none yet."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_MS)
        self.connection = connection
        self._unsent = memoryview(_HEADERS)
        self._sent_s = time.monotonic()
        self.needs_all = True

    def send(self, event: bytes, all_of_it: bytes | None, now_s: float) -> bool:
        """Send the unsent rest, then the event or, if it needs that, the whole state; False if the browser is gone."""
        if not self._flush(now_s):
            return False
        if self._unsent or (self.needs_all and all_of_it is None):
            self.needs_all = True
            return now_s - self._sent_s < _STUCK_S
        self._unsent = memoryview(all_of_it if self.needs_all and all_of_it is not None else event)
        self.needs_all = False
        return self._flush(now_s)

    def _flush(self, now_s: float) -> bool:
        while self._unsent:
            try:
                sent = self.connection.send(self._unsent)
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._unsent = self._unsent[sent:]
            self._sent_s = now_s
        return True

    def close(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def _encoded(event: object) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
