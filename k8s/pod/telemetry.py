"""Start a process's telemetry: metrics for Prometheus and OTLP, traces for OTLP, and the monitoring endpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from threading import Thread
from typing import Any, Literal
from uuid import uuid4

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NoOpTracerProvider, Tracer
from prometheus_client import CollectorRegistry, ProcessCollector
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from k8s.pod.addresses import Bind, check_url
from k8s.pod.errors import StartError
from k8s.pod.metrics_buffer import MetricsBuffer
from k8s.pod.monitoring import Health, MonitoringServer, Pages
from k8s.pod.old_names import under_old_names

_SCOPE = "tokenbatch"
_LAST_EXPORT_S = 3.0  # a collector that is gone must not hold up the end


class TelemetrySettings(BaseModel):
    """Logs, metrics, health. OTLP is set by OpenTelemetry's own variables, OTEL_EXPORTER_OTLP_ENDPOINT and others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metrics_bind: Bind = Field(
        default="0.0.0.0:9464",
        description="host:port of /metrics, /livez, /readyz and, on an aggregator, the live page; port 0 picks a free"
        " one",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the lowest level that is logged"
    )


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The parts that `start` started.

    `traces`: whether spans are exported; if not, `tracer` makes none.
    """

    tracer: Tracer
    traces: bool
    buffer: MetricsBuffer
    health: Health
    _metrics: MeterProvider
    _traces: TracerProvider | None
    _server: MonitoringServer

    @property
    def metrics_address(self) -> str:
        return self._server.address

    def show(self, pages: Pages) -> None:
        """Serve further pages at the monitoring endpoint."""
        self._server.show(pages)

    def shutdown(self) -> None:
        """Export the rest, and stop; waits for the collector no longer than 3 s."""
        self._server.close()
        exporting = Thread(target=self._export_rest, name="last export", daemon=True)
        exporting.start()
        exporting.join(_LAST_EXPORT_S)

    def _export_rest(self) -> None:
        self._metrics.shutdown()
        if self._traces is not None:
            self._traces.shutdown()


def start(settings: TelemetrySettings, service: str, health: Health | None = None) -> Telemetry:
    """Start telemetry for the process `service`.

    Raises StartError when the endpoint cannot be bound, or when OTLP is wanted over a protocol other than gRPC.
    """
    resource = _resource(service)
    buffer = MetricsBuffer(InstrumentationScope(_SCOPE, release()))
    registry = CollectorRegistry()
    readers: list[MetricReader] = [_PrometheusReader(registry, buffer, resource)]
    if _otlp_wanted("METRICS"):
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - only where asked for

        readers.append(_ExportingReader(OTLPMetricExporter(), buffer, resource))
    spans = _tracer_provider(resource) if _otlp_wanted("TRACES") else None
    ProcessCollector(registry=registry)
    health = health if health is not None else Health()
    server = MonitoringServer(settings.metrics_bind, registry, health)
    metrics = MeterProvider(readers, resource, shutdown_on_exit=False)
    _observe_uptime(metrics.get_meter(_SCOPE, release()))
    tracer = (spans or NoOpTracerProvider()).get_tracer(_SCOPE, release())
    return Telemetry(tracer, spans is not None, buffer, health, metrics, spans, server)


class _WithBuffer(MetricReader):
    """Adds the buffered metrics to the SDK's own."""

    buffer: MetricsBuffer
    resource: Resource

    def buffered(self) -> ScopeMetrics:
        return self.buffer.collect()

    @override
    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        buffered = ResourceMetrics(self.resource, [self.buffered()], "")
        both = MetricsData([*metrics_data.resource_metrics, buffered])
        super()._receive_metrics(both, timeout_millis, **kwargs)  # type: ignore[safe-super]  # of the reader beside it


class _PrometheusReader(_WithBuffer, PrometheusMetricReader):
    def __init__(self, registry: CollectorRegistry, buffer: MetricsBuffer, resource: Resource) -> None:
        self.buffer, self.resource = buffer, resource
        super().__init__(registry=registry, scope_info_enabled=False)

    @override
    def buffered(self) -> ScopeMetrics:
        found = super().buffered()
        return replace(found, metrics=[*found.metrics, *under_old_names(found.metrics)])


class _ExportingReader(_WithBuffer, PeriodicExportingMetricReader):
    def __init__(self, exporter: MetricExporter, buffer: MetricsBuffer, resource: Resource) -> None:
        self.buffer, self.resource = buffer, resource
        super().__init__(exporter)


def _resource(service: str) -> Resource:
    attributes = {"service.name": service, "service.version": release(), "service.instance.id": str(uuid4())}
    return Resource.create(attributes).merge(OTELResourceDetector().detect())


def release() -> str:
    """The version of this package; `unknown` where it is not installed."""
    try:
        return version("tokenbatch")
    except PackageNotFoundError:
        return "unknown"


def collectors() -> dict[str, tuple[str, int]]:
    """Host and port of each collector that OTLP is exported to, by its variable. Raises StartError."""
    wanted = {signal: _otlp_wanted(signal) for signal in ("METRICS", "TRACES")}
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": any(wanted.values())}
    variables |= {f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT": wanted[signal] for signal in wanted}
    given = {name: os.environ.get(name, "") for name, is_wanted in variables.items() if is_wanted}
    return {name: check_url(name, url) for name, url in given.items() if url}


def _otlp_wanted(signal: str) -> bool:
    """Whether OpenTelemetry's standard variables ask for OTLP export of METRICS or TRACES."""
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    exporter = os.environ.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    given = [name for name in endpoints if os.environ.get(name)]
    if disabled or exporter != "otlp" or not given:
        return False
    for name in given:
        check_url(name, os.environ[name])
    names = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name = next((name for name in names if os.environ.get(name)), "")
    if name and os.environ[name] != "grpc":
        raise StartError(f"{name} is {os.environ[name]}: OTLP is exported over grpc only (port 4317 by default)")
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
