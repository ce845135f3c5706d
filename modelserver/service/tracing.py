"""One server span per batch, in the trace of its caller, if traces are exported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, Tracer

Metadata = Iterable[tuple[str, str | bytes]]
BatchSpan = Callable[[Metadata | None], AbstractContextManager[object]]
"""Opens the span of one batch, given its call's metadata."""

_ATTRIBUTES = {"rpc.system": "grpc", "rpc.service": "modelserver.v1.ModelServer", "rpc.method": "EmbedBatch"}


def no_span(_: Metadata | None) -> AbstractContextManager[object]:
    """If traces are not exported."""
    return nullcontext()


def batch_spans(tracer: Tracer) -> BatchSpan:
    """Spans by the rpc semantic conventions; the parent is in the metadata's traceparent."""

    def span(metadata: Metadata | None) -> AbstractContextManager[object]:
        carrier = {name: value for name, value in metadata or () if isinstance(value, str)}
        return tracer.start_as_current_span(
            "modelserver.v1.ModelServer/EmbedBatch",
            context=extract(carrier),
            kind=SpanKind.SERVER,
            attributes=_ATTRIBUTES,
        )

    return span
