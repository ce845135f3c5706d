from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from aggregator.observability.tracing import Tracing
from aggregator.request import request as names
from aggregator.wings.tracing.spans import SpanTracing, remote_span
from tests.support.fake_source import GRPC, KAFKA, FakeSource, any_request

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
REDIS, HTTP = FakeSource("redis", refusable=False), FakeSource(names.HTTP, refusable=True)


@pytest.fixture
def tracing(tracer: Tracer) -> Tracing:
    return SpanTracing(tracer)


def process(tracing: Tracing, *parents: bytes | None) -> AbstractContextManager[object]:
    requests = [any_request(source=KAFKA, traceparent=parent) for parent in parents]
    return tracing.process("m", "b1", queries=2, tokens=9, attempt=0, requests=requests)


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


def test_a_batch_links_every_request_once(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    other = PARENT.replace(SPAN, "00f067aa0ba902b7")
    with process(tracing, PARENT.encode(), None, b"nonsense", PARENT.encode(), other.encode()):
        pass
    span = only(exporter)
    assert (span.name, span.kind) == ("process m", SpanKind.CONSUMER)
    assert [link.context.span_id for link in span.links] == [remote_span(each).span_id for each in (PARENT, other)]
    attributes = span.attributes or {}
    assert attributes["messaging.operation.type"] == "process"
    assert attributes["messaging.batch.message_count"] == 2


@pytest.mark.parametrize(
    ("sources", "named", "system", "kind"),
    [
        ([KAFKA, KAFKA], ("kafka",), "kafka", SpanKind.CONSUMER),
        ([REDIS], ("redis",), "redis", SpanKind.CONSUMER),
        ([GRPC], ("grpc",), None, SpanKind.INTERNAL),
        ([HTTP, HTTP], ("http",), None, SpanKind.INTERNAL),
        ([KAFKA, GRPC, KAFKA], ("grpc", "kafka"), None, SpanKind.INTERNAL),
        ([REDIS, KAFKA], ("kafka", "redis"), None, SpanKind.INTERNAL),
    ],
)
def test_a_batch_says_where_its_requests_came_from(
    tracing: Tracing,
    exporter: InMemorySpanExporter,
    *,
    sources: list[FakeSource],
    named: tuple[str, ...],
    system: str | None,
    kind: SpanKind,
) -> None:
    requests = [any_request(source=source) for source in sources]
    with tracing.process("m", "b1", queries=7, tokens=9, attempt=0, requests=requests):
        pass
    span = only(exporter)
    attributes = span.attributes or {}
    assert (attributes["tokenbatch.batch.sources"], attributes["tokenbatch.batch.queries"]) == (named, 7)
    assert (attributes.get("messaging.system"), span.kind) == (system, kind)
    assert any(name.startswith("messaging.") for name in attributes) == (system is not None)


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


@pytest.mark.parametrize(("operation", "kind"), [("receive", SpanKind.CLIENT), ("send", SpanKind.PRODUCER)])
def test_kafka_spans_follow_the_messaging_conventions(
    tracing: Tracing, exporter: InMemorySpanExporter, operation: str, kind: SpanKind
) -> None:
    with tracing.receive(["topic"] * 5) if operation == "receive" else tracing.send({"topic": 5}):
        pass
    span = only(exporter)
    assert (span.name, span.kind) == (f"{operation} topic", kind)
    attributes = span.attributes or {}
    assert attributes["messaging.system"] == "kafka"
    assert attributes["messaging.destination.name"] == "topic"
    assert attributes["messaging.batch.message_count"] == 5


def test_a_call_is_a_child_of_its_batch_and_names_the_server(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with process(tracing), tracing.step("m", "embeddings", "10.0.0.1:50061", tokens=9, dimensions=384):
        sent = remote_span(tracing.traceparent())
    call, batch = exporter.get_finished_spans()
    assert call.parent is not None
    assert call.parent.span_id == _id(batch)
    assert sent is not None
    assert sent.span_id == _id(call)
    attributes = call.attributes or {}
    assert (attributes["server.address"], attributes["server.port"]) == ("10.0.0.1", 50061)
    assert attributes["rpc.method"] == "modelserver.v1.ModelServer/EmbedBatch"


def test_a_batch_on_its_server_is_an_embeddings_operation(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with tracing.step("m", "embeddings", "10.0.0.1:50061", tokens=9, dimensions=384):
        pass
    span = only(exporter)
    assert (span.name, span.kind) == ("embeddings m", SpanKind.CLIENT)
    found = {name: value for name, value in (span.attributes or {}).items() if name.startswith("gen_ai.")}
    assert found == {
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "tokenbatch",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.embeddings.dimension.count": 384,
    }


@pytest.mark.parametrize("kind", ["rank", "classify"])
def test_a_batch_of_scores_is_no_embeddings_operation(
    tracing: Tracing, exporter: InMemorySpanExporter, kind: str
) -> None:
    with tracing.step("m", kind, "10.0.0.1:50061", tokens=9, dimensions=0) as answered:
        answered("OK")
    span = only(exporter)
    assert span.name == f"{kind} m"
    attributes = span.attributes or {}
    assert attributes["gen_ai.operation.name"] == kind
    assert "gen_ai.embeddings.dimension.count" not in attributes
    assert attributes["rpc.response.status_code"] == "OK"


def test_each_topic_of_a_write_has_a_span_and_its_own_refusals(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    with tracing.send({"embed.replies.v1": 2, "rank.replies.v1": 1}) as refused:
        refused("rank.replies.v1", KeyError("a secret"))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert [*spans] == ["send embed.replies.v1", "send rank.replies.v1"]
    failed = spans["send rank.replies.v1"]
    assert (failed.attributes or {})["error.type"] == "KeyError"
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.parent is None
    assert "error.type" not in (spans["send embed.replies.v1"].attributes or {})


def test_an_answered_call_continues_its_callers_trace(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    tracing.serve("embedding.v1.Embeddings/Embed", {}, PARENT).end()
    tracing.serve("embedding.v1.Embeddings/Embed", {}, None).end()
    continued, fresh = exporter.get_finished_spans()
    assert continued.parent == remote_span(PARENT)
    assert fresh.parent is None


def test_a_failure_is_marked_by_its_type_and_never_by_its_words(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(ValueError, match="a query's text"), tracing.receive(["topic"]):
        raise ValueError("a query's text")
    span = only(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert "a query's text" not in span.to_json()
    assert (span.attributes or {})["error.type"] == "ValueError"


@pytest.mark.parametrize(
    "value",
    [
        *("", "00", "nonsense", PARENT.upper(), PARENT[:-1], f"{PARENT}-more", f"ff-{TRACE}-{SPAN}-01"),
        *(
            f"00-{'0' * 32}-{SPAN}-01",
            f"00-{TRACE}-{'0' * 16}-01",
            f"00-{TRACE[:-1]}g-{SPAN}-01",
            f"0 -{TRACE}-{SPAN}-01",
        ),
        b"\xff\xfe",
        None,
    ],
)
def test_what_is_no_traceparent_is_none(value: str | bytes | None) -> None:
    assert not remote_span(value).is_valid
