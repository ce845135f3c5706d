"""Serve metrics and health over HTTP on threads, so that they answer while the event loop is busy."""

from __future__ import annotations

import logging
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from typing_extensions import override

from aggregator.errors import StartError
from aggregator.observability.health import Health

_LOG = logging.getLogger(__name__)
_POLL_S = 0.1  # how soon a close is noticed
_TEXT = "text/plain; charset=utf-8"


class MonitoringServer:
    """`/metrics` (Prometheus and OpenMetrics text), `/livez` and `/readyz`."""

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

    @property
    def address(self) -> str:
        """The `host:port` it listens on."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `:port` or `[v6]:port`; raises StartError for anything else."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) >= 2**16:
        raise StartError(f"{address!r} is not an address: give host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that disconnects is no error; any other error is logged."""
        if not isinstance(sys.exception(), OSError):
            _LOG.exception("a request for metrics or health failed")


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    health: Health
    timeout = 10  # a silent client must not keep a thread

    def do_GET(self) -> None:
        """Answer one GET."""
        match urlsplit(self.path).path:
            case "/metrics":
                encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, content_type, encoder(self.registry))
            case "/livez":
                self._answer_check(self.health.liveness())
            case "/readyz":
                self._answer_check(self.health.readiness())
            case _:
                self._answer(404, _TEXT, b"there are /metrics, /livez and /readyz\n")

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes and scrapes come every few seconds."""

    def _answer_check(self, result: tuple[bool, str]) -> None:
        holds, lines = result
        self._answer(200 if holds else 503, _TEXT, lines.encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
