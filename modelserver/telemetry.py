"""Start OpenTelemetry: metrics for Prometheus and OTLP, traces for OTLP; and serve metrics and health over HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from threading import Thread
from uuid import uuid4
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from typing_extensions import override

from modelserver.errors import CannotStart

Check = Callable[[], str | None]
"""The reason of a failure, or None. Called on a thread of the monitoring port."""

_SCOPE = "tokenbatch"
_LAST_EXPORT_S = 3.0
_POLL_S = 0.1  # how soon a close is noticed


class Telemetry:
    """Metrics, traces, and the HTTP port of metrics and health.

    `checks` decides `/livez` and `/readyz`; until it is set, the process is alive and not ready.
    `traces`: whether spans are exported; if not, `tracer` makes none.
    """

    def __init__(self, bind: str) -> None:
        """Serve on `bind`, host:port; port 0 picks a free one. Raises CannotStart if it cannot be bound."""
        resource = _resource()
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False, registry=registry)]
        if _otlp_wanted("METRICS"):
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - only where asked for

            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
        self.traces = _otlp_wanted("TRACES")
        self._spans = _tracer_provider(resource) if self.traces else None
        self._metrics = MeterProvider(readers, resource, shutdown_on_exit=False)
        self.meter: Meter = self._metrics.get_meter(_SCOPE, _version())
        self.tracer = (self._spans or NoOpTracerProvider()).get_tracer(_SCOPE, _version())
        self.checks: dict[str, Check] = {"/livez": lambda: None, "/readyz": lambda: "starting"}
        _observe_uptime(self.meter)
        self._server = _listen(bind, self._app(registry))
        self._thread = Thread(target=self._server.serve_forever, args=(_POLL_S,), name="monitoring", daemon=True)
        self._thread.start()

    @property
    def metrics_address(self) -> str:
        """The host:port of the monitoring port."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def shutdown(self) -> None:
        """Export what is left, and stop; waits for the collector no longer than 3 s."""
        self._server.shutdown()
        self._server.server_close()
        exporting = Thread(target=self._export_rest, name="last export", daemon=True)
        exporting.start()
        exporting.join(_LAST_EXPORT_S)

    def _export_rest(self) -> None:
        self._metrics.shutdown()
        if self._spans is not None:
            self._spans.shutdown()

    def _app(self, registry: CollectorRegistry) -> WSGIApplication:
        """`/metrics`, `/livez` and `/readyz`."""
        metrics = make_wsgi_app(registry)

        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if path == "/metrics":
                body: Iterable[bytes] = metrics(environ, start_response)
                return body
            check = self.checks.get(path)
            reason = check() if check is not None else "there are /metrics, /livez and /readyz"
            failed = "503 Service Unavailable" if check is not None else "404 Not Found"
            status = failed if reason else "200 OK"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{reason or 'ok'}\n".encode()]

        return app


class _Server(ThreadingWSGIServer):
    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that closes its connection early is not an error."""


class _Handler(WSGIRequestHandler):
    timeout = 10  # a silent client must not keep a thread

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Probes and scrapes come every few seconds: nothing is logged."""


def _listen(bind: str, app: WSGIApplication) -> WSGIServer:
    host, _, port = bind.rpartition(":")
    try:
        return make_server(host, int(port), app, _Server, _Handler)
    except (OSError, OverflowError, ValueError) as error:
        raise CannotStart(f"metrics cannot be served on {bind!r} (host:port): {error}") from error


def _resource() -> Resource:
    """The resource; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it."""
    attributes = {"service.name": "modelserver", "service.version": _version(), "service.instance.id": str(uuid4())}
    return Resource.create(attributes).merge(OTELResourceDetector().detect())


def _version() -> str:
    try:
        return version("tokenbatch")
    except PackageNotFoundError:
        return "unknown"


def _otlp_wanted(signal: str) -> bool:
    """Whether OpenTelemetry's standard variables ask for OTLP export of METRICS or TRACES."""
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    exporter = os.environ.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or exporter != "otlp" or not any(os.environ.get(name) for name in endpoints):
        return False
    names = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name = next((name for name in names if os.environ.get(name)), "")
    if name and os.environ[name] != "grpc":
        raise CannotStart(f"{name} is {os.environ[name]}: OTLP is exported over grpc only (port 4317 by default)")
    return True


def _tracer_provider(resource: Resource) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - only where asked for

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _observe_uptime(meter: Meter) -> None:
    started_s = time.monotonic()

    def uptime(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(time.monotonic() - started_s)

    meter.create_observable_gauge("process.uptime", [uptime], "s", "time since the start of this process")
