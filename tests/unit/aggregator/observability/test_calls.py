"""Each call is measured, by OpenTelemetry's stable conventions for HTTP and RPC; the wing `tracing` tests the spans."""

from __future__ import annotations

from typing import Any

import pytest

from aggregator.observability.calls import CallTelemetry
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from k8s.pod.metrics_buffer import MetricsBuffer

ROUTE = "/v1/embeddings"


class Watched:
    """Calls that take a second each."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.buffer = MetricsBuffer()
        self.telemetry = CallTelemetry(Tracing(), Metrics(self.buffer), clock=self.clock)

    def clock(self) -> float:
        self.now_s += 0.5
        return self.now_s

    def measured(self, name: str) -> list[tuple[dict[str, Any], float]]:
        (metric,) = [metric for metric in self.buffer.collect().metrics if metric.name == name]
        points: Any = metric.data.data_points
        return [(dict(point.attributes), point.sum) for point in points]


@pytest.mark.parametrize(("status", "error"), [(200, None), (404, None), (429, None), (500, "500"), (0, "CANCELLED")])
def test_a_request_is_measured_with_its_route_and_its_status(status: int, error: str | None) -> None:
    watched = Watched()
    call = watched.telemetry.http("POST", ROUTE, ROUTE, "", secure=True)
    call.status = status
    call.end()
    labels: dict[str, Any] = {"http.request.method": "POST", "url.scheme": "https", "http.route": ROUTE}
    labels |= ({"http.response.status_code": status} if status else {}) | ({"error.type": error} if error else {})
    assert watched.measured("http.server.request.duration") == [(labels, 0.5)]


def test_a_late_failure_and_a_method_that_was_made_up_are_measured() -> None:
    watched = Watched()
    call = watched.telemetry.http("PROPFIND", ROUTE, "", "", secure=False)
    call.status = 200
    call.failed("UNAVAILABLE")
    call.end()
    ((labels, _),) = watched.measured("http.server.request.duration")
    assert (labels["http.request.method"], labels["error.type"]) == ("_OTHER", "UNAVAILABLE")


@pytest.mark.parametrize(("code", "error"), [("OK", None), ("CANCELLED", None), ("UNAVAILABLE", "UNAVAILABLE")])
def test_a_call_over_grpc_is_measured_with_its_method_and_its_status(code: str, error: str | None) -> None:
    watched = Watched()
    watched.telemetry.rpc("ranking.v1.Ranking/Rank", "").end(code)
    labels = {"rpc.system.name": "grpc", "rpc.method": "ranking.v1.Ranking/Rank", "rpc.response.status_code": code}
    labels |= {"error.type": error} if error else {}
    assert watched.measured("rpc.server.call.duration") == [(labels, 0.5)]
