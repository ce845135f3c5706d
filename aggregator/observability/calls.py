"""The server's side of calls: a span and a duration of each, by OpenTelemetry's stable conventions for HTTP and RPC.

A status that blames the caller is no error of a server: then a span's status stays unset, and `error.type` is absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.trace import INVALID_SPAN, Span

from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing, mark_failed
from k8s.pod.rpc_spans import error_of, rpc_attributes

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"))
_OTHER = "_OTHER"  # a method that the conventions do not know
_SERVER_ERROR = 500
_MOST_CHARACTERS = 256  # of a path, which a caller chooses
CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class CallTelemetry:
    """Opens and measures the calls of one listener; times are monotonic seconds."""

    tracing: Tracing
    metrics: Metrics
    clock: Callable[[], float] = time.monotonic

    def http(self, method: str, path: str, route: str, traceparent: str, *, secure: bool) -> HttpCall:
        """A request whose head is there; `route`: the pattern of its path, empty if there is none."""
        scheme = "https" if secure else "http"
        known = method if method in _METHODS else _OTHER
        labels = known, scheme, route
        if not self.tracing.enabled:
            return HttpCall(INVALID_SPAN, self, labels)
        attributes = {"http.request.method": known, "url.path": path[:_MOST_CHARACTERS], "url.scheme": scheme}
        if known is _OTHER:
            attributes["http.request.method_original"] = method[:_MOST_CHARACTERS]
        if route:
            attributes["http.route"] = route
        name = "HTTP" if known is _OTHER else known
        span = self.tracing.serve(f"{name} {route}" if route else name, attributes, traceparent)
        return HttpCall(span, self, labels)

    def rpc(self, method: str, traceparent: str) -> RpcCall:
        """A call of a `method`, package.Service/Method."""
        tracing = self.tracing
        span = tracing.serve(method, rpc_attributes(method), traceparent) if tracing.enabled else INVALID_SPAN
        return RpcCall(span, self, method)


class HttpCall:
    """One request over HTTP."""

    __slots__ = ("_error", "_labels", "_span", "_started_s", "_telemetry", "status")

    def __init__(self, span: Span, telemetry: CallTelemetry, labels: tuple[str, str, str]) -> None:
        self._span = span
        self._telemetry = telemetry
        self._labels = labels
        self._started_s = telemetry.clock()
        self._error = ""
        self.status = 0
        """Of the response; 0 while there is none."""

    def failed(self, error: str) -> None:
        """It failed after its status was sent."""
        self._error = error

    def end(self) -> None:
        """Its response is handed to the network, or its caller went away."""
        status, error = self.status, self._error
        code = str(status) if status else ""
        if not error:
            error = CANCELLED if not status else code if status >= _SERVER_ERROR else ""
        if self._span is not INVALID_SPAN:
            if status:
                self._span.set_attribute("http.response.status_code", status)
            if error:
                mark_failed(self._span, error)
            self._span.end()
        self._telemetry.metrics.http_duration.record(
            self._telemetry.clock() - self._started_s, *self._labels, code, error
        )


class RpcCall:
    """One call over gRPC."""

    __slots__ = ("_method", "_span", "_started_s", "_telemetry")

    def __init__(self, span: Span, telemetry: CallTelemetry, method: str) -> None:
        self._span = span
        self._telemetry = telemetry
        self._method = method
        self._started_s = telemetry.clock()

    def end(self, code: str) -> None:
        """It has this status, by name."""
        error = error_of(code)
        if self._span is not INVALID_SPAN:
            self._span.set_attribute("rpc.response.status_code", code)
            if error:
                mark_failed(self._span, error)
            self._span.end()
        self._telemetry.metrics.rpc_duration.record(
            self._telemetry.clock() - self._started_s, "grpc", self._method, code, error
        )
