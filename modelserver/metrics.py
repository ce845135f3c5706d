"""The model server's metrics, recorded once per step on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc
from opentelemetry.metrics import Histogram, Meter, Observation

from modelserver.scheduler.generation_steps import GenerationStep
from modelserver.scheduler.merge import Composition
from modelserver.scheduler.queued_batch import StepReport

_DURATION_BOUNDS_S = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0,
)  # fmt: skip
_TOKEN_BOUNDS = (8, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384, 32768)
_IDLE_BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0)


class Metrics:
    """The instruments; all methods are called on the event loop."""

    def __init__(self, meter: Meter, queued_tokens: Callable[[], int]) -> None:
        """`queued_tokens` is read at each collection, on the collector's thread."""

        def histogram(name: str, unit: str, description: str, bounds: Sequence[float]) -> Histogram:
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds)

        self._duration = histogram("embed.engine.duration", "s", "time of one engine step", _DURATION_BOUNDS_S)
        self._tokens = histogram("embed.engine.step.tokens", "{token}", "tokens of one engine step", _TOKEN_BOUNDS)
        self._idle = histogram("embed.engine.idle", "s", "the engine's idle time before a step", _IDLE_BOUNDS_S)
        self._queries = meter.create_counter("embed.engine.queries", "{query}", "queries computed")
        self._batches = meter.create_counter("embed.engine.batches", "{batch}", "batches computed")
        self._failed = meter.create_counter("embed.engine.failed_steps", "{step}", "steps in which the engine raised")
        self.rebuilds = meter.create_counter(
            "embed.engine.rebuilds", "{rebuild}", "engines built again after a failure"
        )
        self.fallbacks = meter.create_counter(
            "embed.engine.fallbacks", "{fallback}", "starts with EngineCore instead of the direct engine"
        )
        self._refused = meter.create_counter(
            "embed.engine.refused", "{refusal}", "batches and queries refused or failed"
        )
        meter.create_observable_gauge(
            "embed.engine.queued_tokens",
            [lambda _: [Observation(queued_tokens())]],
            "{token}",
            "tokens that wait for the engine",
        )
        self._step = histogram(
            "generate.engine.duration", "s", "time of one engine step of a model that generates", _DURATION_BOUNDS_S
        )
        self._generated = meter.create_counter("generate.engine.tokens", "{token}", "prompt tokens and new tokens")
        self.one_task = meter.create_counter(
            "mixed.engine.fallbacks", "{fallback}", "starts with one task because the self-check of both failed"
        )
        for counter in (self._queries, self._batches, self.rebuilds, self.fallbacks, self.one_task):
            counter.add(0)  # a rate needs the zero before the first

    def step(self, report: StepReport) -> None:
        composition = {"composition": report.composition.value}
        self._duration.record(report.duration_s, composition)
        self._tokens.record(report.tokens, composition)
        self._idle.record(report.idle_before_s)
        self._queries.add(report.queries)
        self._batches.add(report.batches)

    def generation_step(self, step: GenerationStep) -> None:
        self._step.record(step.duration_s)
        self._generated.add(step.prefill_tokens, {"kind": "prompt"})
        self._generated.add(step.new_tokens, {"kind": "new"})

    def failed_step(self, composition: Composition) -> None:
        self._failed.add(1, {"composition": composition.value})

    def refused(self, code: grpc.StatusCode, queries: int) -> None:
        """A refused batch (`queries` 0), or this many refused queries of a batch."""
        self._refused.add(queries or 1, {"what": "query" if queries else "batch", "code": code.name})
