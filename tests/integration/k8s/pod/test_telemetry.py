from __future__ import annotations

import http.client
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from k8s.pod import telemetry
from k8s.pod.errors import StartError
from k8s.pod.monitoring import Health
from k8s.pod.telemetry import Telemetry, TelemetrySettings

LOCAL = TelemetrySettings(metrics_bind="127.0.0.1:0")


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def started(health: Health) -> Iterator[Telemetry]:
    started = telemetry.start(LOCAL, "test-service", health)
    yield started
    started.shutdown()


def get(started: Telemetry, path: str, accept: str = "") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{started.metrics_address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - a local server of ours
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_one_failed_check_says_which_and_why(started: Telemetry, health: Health) -> None:
    health.ready.update(kafka=lambda: None, models=lambda: "no server")
    assert get(started, "/readyz") == (503, "[+]kafka ok\n[-]models no server\nfailed\n")


def test_a_metric_is_scraped_under_its_old_name_too(started: Telemetry) -> None:
    for name in ("tokenbatch.expired", "tokenbatch.generate.engine.tokens", "tokenbatch.tokens", "gen_ai.tokens"):
        started.buffer.counter(name, "{query}", "counted").add(3)
    _, text = get(started, "/metrics")
    assert {line for line in text.splitlines() if line.endswith(" 3.0")} == {
        "tokenbatch_expired_total 3.0",
        "embed_expired_total 3.0",
        "tokenbatch_generate_engine_tokens_total 3.0",
        "generate_engine_tokens_total 3.0",
        "tokenbatch_tokens_total 3.0",
        "gen_ai_tokens_total 3.0",
    }


@pytest.mark.parametrize("path", ["/metrics", "/livez", "/readyz", "/wings"])
def test_a_head_is_that_of_the_get_without_its_body(started: Telemetry, path: str) -> None:
    def asked(method: str) -> tuple[int, str | None, bytes]:
        connection = http.client.HTTPConnection(started.metrics_address, timeout=30)
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.getheader("content-type"), response.read()

    status, content_type, body = asked("GET")
    assert body
    assert asked("HEAD") == (status, content_type, b"")


def test_a_prober_that_hangs_up_leaves_no_traceback(
    started: Telemetry, health: Health, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = started.metrics_address.rpartition(":")
    with socket.create_connection((host, int(port))) as prober:
        prober.sendall(b"GET /readyz HTTP/1.1\r\nHost")
        prober.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
    health.ready["broken"] = lambda: str(1 // 0)
    with pytest.raises(http.client.RemoteDisconnected):
        get(started, "/readyz")
    for thread in threading.enumerate():
        if "process_request" in thread.name:
            thread.join()
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    assert "Traceback" not in capsys.readouterr().err


def test_otlp_over_http_is_refused_with_the_name_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with pytest.raises(StartError, match="OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf"):
        telemetry.start(LOCAL, "other")


def test_a_collector_that_is_away_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8s.pod.telemetry._LAST_EXPORT_S", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    started = telemetry.start(LOCAL, "test-service")
    started.shutdown()
    assert "last export" in {thread.name for thread in threading.enumerate()}, "it was waited for"


class Collector(
    metrics_service_pb2_grpc.MetricsServiceServicer,
    trace_service_pb2_grpc.TraceServiceServicer,
):
    def __init__(self) -> None:
        self.metrics: list[metrics_service_pb2.ExportMetricsServiceRequest] = []
        self.spans: list[str] = []

    def Export(self, request: object, context: object) -> object:  # noqa: N802, ARG002 - the name in the contract
        if isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest):
            self.metrics.append(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()
        assert isinstance(request, trace_service_pb2.ExportTraceServiceRequest)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [span.name for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr("k8s.pod.telemetry._LAST_EXPORT_S", 60.0)
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab")
    yield collector
    server.stop(None).wait()


def test_prometheus_and_otlp_show_the_same_figures(collector: Collector) -> None:
    started = telemetry.start(LOCAL, "test-service")
    duration = started.buffer.histogram("tokenbatch.e2e.duration", "s", "latency", (0.1, 1.0))
    duration.record_all([0.05, 0.5, 7.0])
    _, text = get(started, "/metrics")
    assert 'tokenbatch_e2e_duration_seconds_bucket{le="1.0"} 2.0' in text
    with started.tracer.start_as_current_span("receive embed.requests.v1"):
        pass
    assert started.traces
    started.shutdown()
    resources = [resource for request in collector.metrics for resource in request.resource_metrics]
    attributes = {pair.key: pair.value.string_value for pair in resources[0].resource.attributes}
    assert (attributes["service.name"], attributes["deployment.environment"]) == ("test-service", "lab")
    metrics = {metric.name: metric for it in resources for scope in it.scope_metrics for metric in scope.metrics}
    (point,) = metrics["tokenbatch.e2e.duration"].histogram.data_points
    assert list(point.bucket_counts) == [1, 1, 1]
    assert (point.count, point.sum, point.min, point.max) == (3, 7.55, 0.05, 7.0)
    assert collector.spans == ["receive embed.requests.v1"]
