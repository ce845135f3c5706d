"""Open the few spans of the hot path: one per fetch, batch, generation and send; none when no collector is configured.

Names and attributes follow OpenTelemetry's messaging, rpc, HTTP and generative AI conventions. A batch's `process` span
links every request in it, by the W3C `traceparent` of each.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from aggregator.errors import Code
    from aggregator.request.generation import Generation
    from aggregator.request.request import Request

MAX_LINKS = 128
"""Links of one span; OpenTelemetry's own default limit."""

PROVIDER = "tokenbatch"
"""`gen_ai.provider.name`: OpenTelemetry's conventions list vendors only, and let others name themselves."""
_NOTHING: AbstractContextManager[None] = nullcontext()
_W3C = TraceContextTextMapPropagator()


class Tracing:
    """The spans of one aggregator. Every method costs a comparison when `enabled` is False."""

    __slots__ = ("_tracer", "enabled")

    def __init__(self, tracer: Tracer | None = None, *, enabled: bool = False) -> None:
        """Without a tracer, or disabled, nothing is traced."""
        self._tracer = tracer or NoOpTracer()
        self.enabled = enabled and tracer is not None

    def receive(self, topic: str, count: int) -> AbstractContextManager[None]:
        return self._messaging("receive", topic, SpanKind.CLIENT, count) if self.enabled else _NOTHING

    def send(self, topic: str, count: int) -> AbstractContextManager[None]:
        return self._messaging("send", topic, SpanKind.PRODUCER, count) if self.enabled else _NOTHING

    def process(
        self, model: str, batch_id: str, *, queries: int, tokens: int, attempt: int, requests: Iterable[Request]
    ) -> AbstractContextManager[None]:
        """One batch from dispatch to completion; `requests` are read only if traced.

        It is a messaging span where all of them came from one broker.
        """
        if not self.enabled:
            return _NOTHING
        origins = [(request.source.name, request.traceparent) for request in requests]
        sources = sorted({source for source, _ in origins})
        attributes: dict[str, str | int | Sequence[str]] = {
            "tokenbatch.batch.sources": sources,
            "tokenbatch.batch.queries": queries,
            "gen_ai.request.model": model,
            "tokenbatch.batch.id": batch_id,
            "tokenbatch.batch.tokens": tokens,
            "tokenbatch.batch.attempt": attempt,
        }
        kind = SpanKind.INTERNAL
        if sources in (["kafka"], ["redis"]):
            kind = SpanKind.CONSUMER
            attributes["messaging.system"] = sources[0]
            attributes["messaging.operation.name"] = attributes["messaging.operation.type"] = "process"
            attributes["messaging.batch.message_count"] = queries
        return self._open(f"process {model}", kind, attributes, links=_links(parent for _, parent in origins))

    def generated(self, request: Request, generation: Generation, now_s: float, failed: Code | None) -> None:
        """A generation that ended now (monotonic seconds), from its dispatch on, as a child of its request."""
        if not self.enabled:
            return
        end_ns = time.time_ns()
        operation = "chat" if generation.messages else "text_completion"
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": request.model,
            "gen_ai.usage.input_tokens": generation.prompt_tokens,
            "gen_ai.usage.output_tokens": len(generation.token_ids),
            "tokenbatch.generation.attempts": generation.attempts,
        }
        span = self._tracer.start_span(
            f"{operation} {request.model}",
            _context(request.traceparent) or Context(),  # not in the batch's span
            SpanKind.CLIENT,
            attributes,
            start_time=end_ns - round((now_s - generation.started_s) * 1e9),
        )
        if generation.token_ids:
            span.add_event("first token", timestamp=end_ns - round((now_s - generation.first_token_s) * 1e9))
        if failed is not None:
            span.set_attribute("error.type", failed.name)
            span.set_status(Status(StatusCode.ERROR, failed.name))
        span.end(end_ns)

    def embeddings(self, model: str, address: str, *, tokens: int, dimensions: int) -> AbstractContextManager[None]:
        """One batch on its model server, which is an embeddings operation by the conventions and a call by gRPC."""
        if not self.enabled:
            return _NOTHING
        host, _, port = address.rpartition(":")
        attributes = {
            "gen_ai.operation.name": "embeddings",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.usage.input_tokens": tokens,
            "gen_ai.embeddings.dimension.count": dimensions,
            **_rpc("modelserver.v1.ModelServer", "EmbedBatch"),
            "server.address": host,
            "server.port": int(port),
        }
        return self._open(f"embeddings {model}", SpanKind.CLIENT, attributes)

    def serve(self, service: str, method: str, traceparent: str | bytes | None) -> AbstractContextManager[None]:
        """A gRPC call being answered, as a child of the caller's span."""
        if not self.enabled:
            return _NOTHING
        context = _context(traceparent)
        return self._open(f"{service}/{method}", SpanKind.SERVER, _rpc(service, method), context=context)

    def serve_http(self, route: str, traceparent: str | bytes | None) -> Span:
        """A request over HTTP being answered, as a child of the caller's span. The answer ends it."""
        if not self.enabled:
            return INVALID_SPAN
        attributes = {"http.request.method": "POST", "http.route": route}
        return self._tracer.start_span(
            f"POST {route}", _context(traceparent), SpanKind.SERVER, attributes, record_exception=False
        )

    def traceparent(self) -> str | None:
        """The span now open, as a `traceparent` to send along; None when nothing is traced."""
        carrier: dict[str, str] = {}
        if self.enabled:
            _W3C.inject(carrier)
        return carrier.get("traceparent")

    def _messaging(self, operation: str, topic: str, kind: SpanKind, count: int) -> AbstractContextManager[None]:
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
            "messaging.batch.message_count": count,
        }
        return self._open(f"{operation} {topic}", kind, attributes)

    @contextmanager
    def _open(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, str | int | Sequence[str]],
        *,
        context: Context | None = None,
        links: list[Link] | None = None,
    ) -> Generator[None]:
        with self._tracer.start_as_current_span(
            name, context, kind, attributes, links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                mark_failed(span, error)
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


def _rpc(service: str, method: str) -> dict[str, str | int]:
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def mark_failed(span: Span, error: BaseException) -> None:
    """Mark a span as failed by the error's type: its message could quote a query."""
    name = type(error).__name__
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, name))
