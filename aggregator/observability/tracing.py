"""The hook for spans of the hot path: one per fetch, batch, generation, call and send. By default there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from opentelemetry.trace import INVALID_SPAN, Span, Status, StatusCode

from aggregator.errors import Code

if TYPE_CHECKING:
    from aggregator.request.request import Request

PROVIDER = "tokenbatch"
"""`gen_ai.provider.name`: OpenTelemetry's conventions list vendors only, and let others name themselves."""
_NOTHING: AbstractContextManager[object] = nullcontext()
_UNTOLD: AbstractContextManager[Callable[[str], None]] = nullcontext(lambda _code: None)
_IGNORED: AbstractContextManager[Callable[[str, Exception], None]] = nullcontext(lambda _topic, _error: None)


class Tracing:
    """The spans of one aggregator: none. The wing `tracing` makes them.

    While `enabled` is False no attribute of a span needs to be made.
    """

    __slots__ = ()
    enabled: ClassVar[bool] = False

    def receive(self, topics: Iterable[str]) -> AbstractContextManager[object]:
        """Records that one fetch brought, by the topic of each: a span per topic."""
        del topics
        return _NOTHING

    def send(self, counts: Mapping[str, int]) -> AbstractContextManager[Callable[[str, Exception], None]]:
        """Records that are written at once: a span per topic, by its number of records.

        The context's value is called with the topic and the error of each record that is refused.
        """
        del counts
        return _IGNORED

    def process(
        self, model: str, batch_id: str, *, queries: int, tokens: int, attempt: int, requests: Iterable[Request]
    ) -> AbstractContextManager[object]:
        """One batch from dispatch to completion; `requests` are read only if traced."""
        del model, batch_id, queries, tokens, attempt, requests
        return _NOTHING

    def child(self, request: Request, name: str, attributes: Mapping[str, str | int], start_ns: int) -> Span:
        """Start a span for a part of one request's work, as its child. The caller ends it; `start_ns` is Unix time."""
        del request, name, attributes, start_ns
        return INVALID_SPAN

    def step(
        self, model: str, operation: str, address: str, *, tokens: int, dimensions: int
    ) -> AbstractContextManager[Callable[[str], None]]:
        """One batch on its model server; `dimensions`: of vectors, 0 if it gives none.

        The context's value is called with the call's status, by name.
        """
        del model, operation, address, tokens, dimensions
        return _UNTOLD

    def serve(self, name: str, attributes: Mapping[str, str], traceparent: str | bytes | None) -> Span:
        """A call or request being answered, as a child of the caller's span; `CallTelemetry` ends it."""
        del name, attributes, traceparent
        return INVALID_SPAN

    def failed(self, code: Code) -> None:
        """The work of the span now open failed."""

    def traceparent(self) -> str | None:
        """The span now open, as a `traceparent` to send along; None when nothing is traced."""
        return None


def mark_failed(span: Span, error: str) -> None:
    """Mark a span as failed by a code or the type of an error: a message could quote a query."""
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))
