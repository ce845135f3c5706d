"""Without a wing nothing is traced."""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry.trace import INVALID_SPAN

from aggregator.errors import Code
from aggregator.observability.tracing import Tracing
from aggregator.request.request import Request
from tests.support.fake_source import any_request

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_a_wing_no_span_is_made_and_no_request_is_read() -> None:
    class Unread:
        def __iter__(self) -> Iterator[Request]:
            raise AssertionError("requests were read")

    tracing = Tracing()
    with tracing.process("m", "b", queries=1, tokens=1, attempt=0, requests=Unread()):
        assert tracing.traceparent() is None
    with tracing.receive("t"), tracing.send({"t": 1}) as refused:
        refused("t", ValueError())
    with tracing.step("m", "embeddings", "a:1", tokens=1, dimensions=1) as answered:
        answered("OK")
        tracing.failed(Code.INTERNAL)
    assert tracing.serve("s/m", {}, PARENT) is INVALID_SPAN
    assert tracing.child(any_request(), "s", {}, 0) is INVALID_SPAN
