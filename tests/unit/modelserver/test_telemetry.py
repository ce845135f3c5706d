"""The monitoring port, and whom OpenTelemetry's variables tell to export."""

from __future__ import annotations

from collections.abc import Generator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from modelserver.errors import CannotStart
from modelserver.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Generator[Telemetry]:
    started = Telemetry("127.0.0.1:0")
    yield started
    started.shutdown()


def answer_of(telemetry: Telemetry, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{telemetry.metrics_address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_it_is_alive_and_not_ready_until_it_says_so(telemetry: Telemetry) -> None:
    assert answer_of(telemetry, "/livez") == (200, "ok\n")
    assert answer_of(telemetry, "/readyz") == (503, "starting\n")
    telemetry.checks = {"/livez": lambda: "a step is stuck", "/readyz": lambda: None}
    assert answer_of(telemetry, "/livez") == (503, "a step is stuck\n")
    assert answer_of(telemetry, "/readyz") == (200, "ok\n")
    assert answer_of(telemetry, "/other")[0] == 404


def test_metrics_are_those_of_the_meter_and_of_the_process(telemetry: Telemetry) -> None:
    telemetry.meter.create_counter("embed.test", "{step}", "steps").add(2)
    text = answer_of(telemetry, "/metrics")[1]
    assert "embed_test_total 2.0" in text
    assert "process_uptime_seconds" in text
    assert "process_resident_memory_bytes" in text
    assert 'service_name="modelserver"' in text


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "203.0.113.1:0"])
def test_an_address_that_cannot_be_had_is_named(bind: str) -> None:
    with pytest.raises(CannotStart, match=r"metrics cannot be served on"):
        Telemetry(bind)


def test_otlp_over_anything_but_grpc_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with pytest.raises(CannotStart, match="OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf"):
        Telemetry("127.0.0.1:0")


def test_spans_are_made_only_where_they_go_anywhere(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not telemetry.traces
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
    exporting = Telemetry("127.0.0.1:0")
    assert exporting.traces
    exporting.shutdown()
