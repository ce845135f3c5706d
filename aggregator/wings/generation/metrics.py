"""The metrics and the span of each generation, by OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import time

from aggregator.errors import Code
from aggregator.observability.metrics import SECONDS, TOKENS
from aggregator.observability.tracing import PROVIDER, Tracing, mark_failed
from aggregator.request.request import Failure, Request
from aggregator.wings.generation.generation import Generation
from k8s.pod.metrics_buffer import MetricsBuffer


class GenerationMetrics:
    """The instruments of generations; used from the event loop's thread only."""

    def __init__(self, buffer: MetricsBuffer) -> None:
        labels = ("gen_ai.request.model", "gen_ai.operation.name", "gen_ai.provider.name")
        self._generation_duration = buffer.histogram(
            "gen_ai.server.request.duration",
            "s",
            "time from intake to the end of a generation",
            SECONDS,
            *labels,
            "error.type",
        )
        self._first_token = buffer.histogram(
            "gen_ai.server.time_to_first_token",
            "s",
            "time from intake to the first token of a generation",
            SECONDS,
            *labels,
        )
        self._token_interval = buffer.histogram(
            "gen_ai.server.time_per_output_token",
            "s",
            "mean time per token of a generation after the first",
            SECONDS,
            *labels,
        )
        self._generation_tokens = buffer.histogram(
            "gen_ai.client.token.usage", "{token}", "tokens of a generation", TOKENS, *labels, "gen_ai.token.type"
        )

    def generated(
        self, model: str, generation: Generation, total_s: float, received_s: float, failure: Failure | None
    ) -> None:
        operation = _operation(generation)
        values = (model, operation, PROVIDER)
        self._generation_duration.record(total_s, *values, "" if failure is None else failure.code.name)
        self._generation_tokens.record(generation.prompt_tokens, *values, "input")
        self._generation_tokens.record(len(generation.token_ids), *values, "output")
        if generation.token_ids:
            first_s = generation.first_token_s - received_s
            self._first_token.record(first_s, *values)
            if len(generation.token_ids) > 1:
                self._token_interval.record((total_s - first_s) / (len(generation.token_ids) - 1), *values)


def trace(tracing: Tracing, request: Request, generation: Generation, now_s: float, failed: Code | None) -> None:
    """A generation that ended now (monotonic seconds), from its dispatch on, as a child of its request."""
    if not tracing.enabled:
        return
    end_ns = time.time_ns()
    operation = _operation(generation)
    attributes: dict[str, str | int] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.model,
        "gen_ai.usage.input_tokens": generation.prompt_tokens,
        "gen_ai.usage.output_tokens": len(generation.token_ids),
        "tokenbatch.generation.attempts": generation.attempts,
    }
    start_ns = end_ns - round((now_s - generation.started_s) * 1e9)
    span = tracing.child(request, f"{operation} {request.model}", attributes, start_ns)
    if generation.token_ids:
        span.add_event("first token", timestamp=end_ns - round((now_s - generation.first_token_s) * 1e9))
    if failed is not None:
        mark_failed(span, failed.name)
    span.end(end_ns)


def _operation(generation: Generation) -> str:
    return "chat" if generation.messages else "text_completion"
