"""Answer scrapes of metrics and the probes of Kubernetes, over HTTP on threads: also while the event loop is busy."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from threading import Thread
from typing import Protocol
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from typing_extensions import override

from k8s.pod.addresses import split_address
from k8s.pod.errors import StartError

_LOG = logging.getLogger(__name__)
_MOST_CONNECTIONS = 64
"""Open at a time, without the live page's viewers: scrapes and probes end at once."""
_POLL_S = 0.1  # how soon a close is noticed
TEXT = "text/plain; charset=utf-8"
Write = Callable[[int, str, bytes, Mapping[str, str]], None]
"""Writes an answer: status, content type, body, further headers."""


Check = Callable[[], str | None]
"""Returns why the check fails, or None. Called on another thread than the event loop's."""
_BEAT_S = 1.0  # time-outs of the loop are 10 s and more


@dataclass(slots=True)
class Health:
    """The named checks of `/livez` and `/readyz`; without a check a process is alive, but not ready."""

    live: dict[str, Check] = field(default_factory=dict[str, Check])
    ready: dict[str, Check] = field(default_factory=dict[str, Check])

    def liveness(self) -> tuple[bool, str]:
        """Whether the process is alive, and a line per check."""
        return _result(self.live, "ok")

    def readiness(self) -> tuple[bool, str]:
        if not self.ready:
            return False, "starting\n"
        return _result(self.ready, "ready")


class Heartbeat:
    """Shows other threads when the event loop last ran, by a timer of one second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._beat()

    def stop(self) -> None:
        self._timer.cancel()

    def within(self, most_s: float) -> Check:
        """The check that the loop ran in the last `most_s` seconds."""

        def check() -> str | None:
            silent_s = self._clock() - self._beaten_s
            return None if silent_s <= most_s else f"has not run for {silent_s:.0f} s"

        return check

    def _beat(self) -> None:
        self._beaten_s = self._clock()
        self._timer = self._loop.call_later(_BEAT_S, self._beat)


def _result(checks: Mapping[str, Check], word: str) -> tuple[bool, str]:
    lines: list[str] = []
    for name, check in tuple(checks.items()):  # the event loop may add one during this loop
        reason = check()
        lines.append(f"[{'-' if reason else '+'}]{name} {reason or 'ok'}\n")
    failed = any(line.startswith("[-]") for line in lines)
    return not failed, "".join(lines) + ("failed" if failed else word) + "\n"


class Pages(Protocol):
    """Pages at further paths: a Protocol, because only the aggregator has some, which this package does not know."""

    def answer(self, path: str, headers: Message, connection: socket, write: Write) -> bool:
        """Answer to GET, or keep the connection; False for a path that is not known."""
        ...

    def keeps(self, connection: object) -> bool:
        """Whether the connection stays open after its request."""
        ...

    def close(self) -> None: ...


class MonitoringServer:
    """`/metrics` (Prometheus and OpenMetrics text), `/livez` and `/readyz`; with `show`, further pages."""

    def __init__(self, bind: str, registry: CollectorRegistry, health: Health) -> None:
        """Bind `host:port`; port 0 picks a free one. Raises StartError when the address cannot be bound."""
        host, port = split_address(bind)

        class Handler(_Handler):
            pass

        Handler.registry, Handler.health = registry, health
        try:
            self._server = _Server((host, port), Handler)
        except OSError as error:
            raise StartError(f"metrics cannot be served on {bind}: {error.strerror or error}") from error
        self._thread = Thread(target=self._server.serve_forever, args=(_POLL_S,), name="monitoring", daemon=True)
        self._thread.start()

    def show(self, pages: Pages) -> None:
        self._server.pages = pages

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        if self._server.pages is not None:
            self._server.pages.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Each connection has a thread. Where there are too many, the oldest one gives way to a new one."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128  # of 5, more callers at once wait for a second
    pages: Pages | None = None

    @override
    def server_activate(self) -> None:
        super().server_activate()
        self._open: dict[socket, None] = {}

    @override
    def process_request(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        assert isinstance(request, socket)
        while len(self._open) >= _MOST_CONNECTIONS:
            oldest = next(iter(tuple(self._open)))  # a copy: other threads remove theirs
            self._open.pop(oldest, None)
            with suppress(OSError):  # it has just ended
                oldest.shutdown(SHUT_RDWR)  # wakes its thread
        self._open[request] = None
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: socket | tuple[bytes, socket]) -> None:
        assert isinstance(request, socket)
        self._open.pop(request, None)
        if self.pages is None or not self.pages.keeps(request):
            super().shutdown_request(request)

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """A disconnected client is not an error; any other error is logged."""
        if not isinstance(sys.exception(), OSError):
            _LOG.exception("a request for metrics or health failed")


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    health: Health
    timeout = 10  # a silent client must not keep a thread

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - the one that made it

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        match path:
            case "/metrics":
                encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, content_type, encoder(self.registry), {})
            case "/livez":
                self._answer_check(self.health.liveness())
            case "/readyz":
                self._answer_check(self.health.readiness())
            case _:
                pages = self.server.pages
                if pages is None or not pages.answer(path, self.headers, self.connection, self._answer):
                    self._answer(404, TEXT, b"there are /metrics, /livez and /readyz\n", {})

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes and scrapes come every few seconds."""

    def _answer_check(self, result: tuple[bool, str]) -> None:
        holds, lines = result
        self._answer(200 if holds else 503, TEXT, lines.encode(), {})

    def _answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
