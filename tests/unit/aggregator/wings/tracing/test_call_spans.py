"""What a call's span and its measurement say, by OpenTelemetry's stable conventions for HTTP and RPC."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from aggregator.observability.calls import CallTelemetry
from aggregator.observability.metrics import Metrics
from aggregator.wings.tracing.spans import SpanTracing, remote_span
from k8s.pod.metrics_buffer import MetricsBuffer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ROUTE = "/v1/embeddings"


class Watched:
    """Calls that take a second each."""

    def __init__(self, tracer: Tracer) -> None:
        self.now_s = 0.0
        self.buffer = MetricsBuffer()
        self.telemetry = CallTelemetry(SpanTracing(tracer), Metrics(self.buffer), clock=self.clock)

    def clock(self) -> float:
        self.now_s += 0.5
        return self.now_s

    def measured(self, name: str) -> list[tuple[dict[str, Any], float]]:
        (metric,) = [metric for metric in self.buffer.collect().metrics if metric.name == name]
        points: Any = metric.data.data_points
        return [(dict(point.attributes), point.sum) for point in points]


@pytest.mark.parametrize(
    ("status", "error"), [(200, None), (400, None), (404, None), (429, None), (500, "500"), (504, "504")]
)
def test_a_status_that_blames_the_caller_is_no_error_of_a_server(
    tracer: Tracer, exporter: InMemorySpanExporter, status: int, error: str | None
) -> None:
    watched = Watched(tracer)
    call = watched.telemetry.http("POST", f"{ROUTE}", ROUTE, PARENT, secure=True)
    call.status = status
    call.end()
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.parent) == (f"POST {ROUTE}", SpanKind.SERVER, remote_span(PARENT))
    labels: dict[str, str | int] = {"http.request.method": "POST", "url.scheme": "https", "http.route": ROUTE}
    labels |= {"http.response.status_code": status} | ({"error.type": error} if error else {})
    assert span.attributes == {**labels, "url.path": ROUTE}
    assert span.status.status_code is (StatusCode.ERROR if error else StatusCode.UNSET)
    assert watched.measured("http.server.request.duration") == [(labels, 0.5)]


def test_a_stream_that_fails_and_a_caller_that_leaves_are_errors(
    tracer: Tracer, exporter: InMemorySpanExporter
) -> None:
    watched = Watched(tracer)
    streamed = watched.telemetry.http("POST", ROUTE, ROUTE, "", secure=False)
    streamed.status = 200
    streamed.failed("UNAVAILABLE")
    streamed.end()
    watched.telemetry.http("POST", ROUTE, ROUTE, "", secure=False).end()
    failed, left = exporter.get_finished_spans()
    found = [(span.attributes or {}) for span in (failed, left)]
    assert [each["error.type"] for each in found] == ["UNAVAILABLE", "CANCELLED"]
    assert [each.get("http.response.status_code") for each in found] == [200, None]
    assert {span.status.status_code for span in (failed, left)} == {StatusCode.ERROR}


def test_a_method_or_path_that_a_caller_made_up_names_no_span(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    watched = Watched(tracer)
    for method, path in (("PROPFIND", ROUTE), ("GET", "/x" * 500)):
        call = watched.telemetry.http(method, path, "", "", secure=False)
        call.status = 405
        call.end()
    odd, long = exporter.get_finished_spans()
    assert (odd.name, long.name) == ("HTTP", "GET")
    assert (odd.attributes or {})["http.request.method_original"] == "PROPFIND"
    assert len(str((long.attributes or {})["url.path"])) == 256
    assert {labels["http.request.method"] for labels, _ in watched.measured("http.server.request.duration")} == {
        "_OTHER",
        "GET",
    }


@pytest.mark.parametrize(
    ("code", "error"),
    [
        *(("OK", None), ("CANCELLED", None), ("INVALID_ARGUMENT", None), ("RESOURCE_EXHAUSTED", None)),
        *(("UNAVAILABLE", "UNAVAILABLE"), ("INTERNAL", "INTERNAL"), ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")),
    ],
)
def test_a_call_over_grpc_has_its_method_and_its_status(
    tracer: Tracer, exporter: InMemorySpanExporter, code: str, error: str | None
) -> None:
    watched = Watched(tracer)
    watched.telemetry.rpc("ranking.v1.Ranking/Rank", PARENT).end(code)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("ranking.v1.Ranking/Rank", SpanKind.SERVER, remote_span(PARENT))
    labels = {"rpc.system.name": "grpc", "rpc.method": span.name, "rpc.response.status_code": code}
    labels |= {"error.type": error} if error else {}
    assert span.attributes == labels
    assert span.status.status_code is (StatusCode.ERROR if error else StatusCode.UNSET)
    assert watched.measured("rpc.server.call.duration") == [(labels, 0.5)]
