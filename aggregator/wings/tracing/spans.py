"""The few spans of the hot path: one per fetch, batch, generation, call and send.

Names and attributes follow OpenTelemetry's messaging, rpc, HTTP and generative AI conventions. A batch's `process` span
links every request in it, by the W3C `traceparent` of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from aggregator.errors import Code, TokenbatchError
from aggregator.observability.tracing import PROVIDER, Tracing, mark_failed
from k8s.pod.rpc_spans import rpc_attributes
from k8s.pod.telemetry import Telemetry

if TYPE_CHECKING:
    from aggregator.request.request import Request

MAX_LINKS = 128
"""Links of one span; OpenTelemetry's own default limit."""

_W3C = TraceContextTextMapPropagator()


class SpanTracing(Tracing):
    """The spans that one aggregator exports."""

    __slots__ = ("_tracer",)
    enabled = True

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @override
    def receive(self, topics: Iterable[str]) -> AbstractContextManager[object]:
        return self._messages("receive", SpanKind.CLIENT, Counter(topics))

    @override
    def send(self, counts: Mapping[str, int]) -> AbstractContextManager[Callable[[str, Exception], None]]:
        return self._messages("send", SpanKind.PRODUCER, counts)

    @override
    def process(
        self, model: str, batch_id: str, *, queries: int, tokens: int, attempt: int, requests: Iterable[Request]
    ) -> AbstractContextManager[object]:
        """A messaging span where all requests came from one broker."""
        origins = [(request.source, request.traceparent) for request in requests]
        sources = sorted({source.name for source, _ in origins})
        attributes: dict[str, str | int | Sequence[str]] = {
            "tokenbatch.batch.sources": sources,
            "tokenbatch.batch.queries": queries,
            "gen_ai.request.model": model,
            "tokenbatch.batch.id": batch_id,
            "tokenbatch.batch.tokens": tokens,
            "tokenbatch.batch.attempt": attempt,
        }
        kind = SpanKind.INTERNAL
        if len(sources) == 1 and not origins[0][0].refusable:
            kind = SpanKind.CONSUMER
            attributes["messaging.system"] = sources[0]
            attributes["messaging.operation.name"] = attributes["messaging.operation.type"] = "process"
            attributes["messaging.batch.message_count"] = queries
        return self._open(f"process {model}", kind, attributes, _links(parent for _, parent in origins))

    @override
    def child(self, request: Request, name: str, attributes: Mapping[str, str | int], start_ns: int) -> Span:
        parent = _context(request.traceparent) or Context()  # not in the batch's span
        return self._tracer.start_span(name, parent, SpanKind.CLIENT, attributes, start_time=start_ns)

    @override
    def step(
        self, model: str, operation: str, address: str, *, tokens: int, dimensions: int
    ) -> AbstractContextManager[Callable[[str], None]]:
        """An operation by the conventions for generative AI, and a call by gRPC."""
        host, _, port = address.rpartition(":")
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.usage.input_tokens": tokens,
            **rpc_attributes("modelserver.v1.ModelServer/EmbedBatch"),
            "server.address": host,
            "server.port": int(port),
        }
        if dimensions:
            attributes["gen_ai.embeddings.dimension.count"] = dimensions
        return self._step(f"{operation} {model}", attributes)

    @override
    def serve(self, name: str, attributes: Mapping[str, str], traceparent: str | bytes | None) -> Span:
        return self._tracer.start_span(name, _context(traceparent), SpanKind.SERVER, attributes)

    @override
    def failed(self, code: Code) -> None:
        mark_failed(get_current_span(), code.name)

    @override
    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get("traceparent")

    @contextmanager
    def _step(self, name: str, attributes: Mapping[str, str | int]) -> Generator[Callable[[str], None]]:
        with self._open(name, SpanKind.CLIENT, attributes) as span:

            def answered(code: str) -> None:
                span.set_attribute("rpc.response.status_code", code)

            yield answered

    @contextmanager
    def _messages(
        self, operation: str, kind: SpanKind, counts: Mapping[str, int]
    ) -> Generator[Callable[[str, Exception], None]]:
        spans = {
            topic: self._tracer.start_span(f"{operation} {topic}", None, kind, _messaging(operation, topic, count))
            for topic, count in counts.items()
        }

        def refused(topic: str, error: Exception) -> None:
            mark_failed(spans[topic], type(error).__name__)

        try:
            yield refused
        except BaseException as error:
            for span in spans.values():
                mark_failed(span, type(error).__name__)
            raise
        finally:
            for span in spans.values():
                span.end()

    @contextmanager
    def _open(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, str | int | Sequence[str]],
        links: list[Link] | None = None,
    ) -> Generator[Span]:
        with self._tracer.start_as_current_span(
            name, None, kind, attributes, links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                mark_failed(span, error.code.name if isinstance(error, TokenbatchError) else type(error).__name__)
                raise


def remote_span(traceparent: str | bytes | None) -> SpanContext:
    """The span that a W3C `traceparent` names; not valid for anything that is not one."""
    text = traceparent.decode("latin-1") if isinstance(traceparent, bytes) else traceparent or ""
    return get_current_span(_W3C.extract({"traceparent": text}, Context())).get_span_context()


def _context(traceparent: str | bytes | None) -> Context | None:
    parent = remote_span(traceparent)
    return set_span_in_context(NonRecordingSpan(parent)) if parent.is_valid else None


def _links(parents: Iterable[bytes | None]) -> list[Link]:
    links: dict[tuple[int, int], Link] = {}
    for parent in parents:
        context = remote_span(parent)
        if context.is_valid:
            links.setdefault((context.trace_id, context.span_id), Link(context))
        if len(links) == MAX_LINKS:
            break
    return list(links.values())


def _messaging(operation: str, topic: str, count: int) -> dict[str, str | int]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.batch.message_count": count,
    }


def open_tracing(telemetry: Telemetry) -> Tracing | None:
    """The spans of this process; None where no collector is configured."""
    return SpanTracing(telemetry.tracer) if telemetry.traces else None
