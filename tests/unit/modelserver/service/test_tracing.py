"""A batch's span continues the trace of its sender."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from modelserver.service.tracing import batch_spans


def test_a_batchs_span_stands_in_its_senders_trace() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    metadata = (("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"), ("binary-bin", b"\0"))
    with batch_spans(provider.get_tracer("test"))(metadata):
        pass
    (span,) = spans.get_finished_spans()
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == trace_id
    assert span.name == "modelserver.v1.ModelServer/EmbedBatch"
