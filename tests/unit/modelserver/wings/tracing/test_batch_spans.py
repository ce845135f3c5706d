"""A batch's span continues the trace of its sender, and has its status."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from modelserver.errors import InvalidBatch, NotServing, QueueFull, StepFailed
from modelserver.service.servicer import BatchSpan
from modelserver.wings.tracing.batch_spans import batch_spans


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def opened(exported: InMemorySpanExporter) -> BatchSpan:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return batch_spans(provider.get_tracer("test"))


def test_a_batchs_span_stands_in_its_senders_trace(exported: InMemorySpanExporter) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    metadata = (("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"), ("binary-bin", b"\0"))
    with opened(exported)(metadata):
        pass
    (span,) = exported.get_finished_spans()
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == trace_id
    assert span.name == "modelserver.v1.ModelServer/EmbedBatch"
    assert dict(span.attributes or {}) == {
        "rpc.system.name": "grpc",
        "rpc.method": "modelserver.v1.ModelServer/EmbedBatch",
        "rpc.response.status_code": "OK",
    }
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("error", "code", "is_fault"),
    [
        (InvalidBatch("a secret"), "INVALID_ARGUMENT", False),
        (QueueFull("a secret"), "RESOURCE_EXHAUSTED", False),
        (NotServing("a secret"), "UNAVAILABLE", True),
        (StepFailed("a secret"), "INTERNAL", True),
        (asyncio.CancelledError(), "CANCELLED", False),
        (KeyError("a secret"), "UNKNOWN", True),
    ],
)
def test_a_batchs_span_has_its_calls_status_and_no_words(
    exported: InMemorySpanExporter, error: BaseException, code: str, *, is_fault: bool
) -> None:
    with suppress(Exception, asyncio.CancelledError), opened(exported)(None):
        raise error
    (span,) = exported.get_finished_spans()
    attributes = span.attributes or {}
    assert attributes["rpc.response.status_code"] == code
    assert attributes.get("error.type") == (code if is_fault else None)
    assert (span.status.status_code is StatusCode.ERROR) == is_fault
    assert "a secret" not in span.to_json()
