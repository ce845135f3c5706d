"""The model server's metrics, gathered once per step on the event loop."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from aggregator.observability.gathered import Gatherer, Instrument
from modelserver.merge import Composition
from modelserver.tickets import StepReport

_DURATION_BOUNDS_S = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0,
)  # fmt: skip
_TOKEN_BOUNDS = (8, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384, 32768)
_IDLE_BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0)


class Metrics:
    """Everything measured here; all methods but the gauge's are called on the event loop."""

    def __init__(self, gatherer: Gatherer, queued_tokens: Callable[[], int]) -> None:
        """`queued_tokens` is read whenever somebody collects."""
        composed = ("composition",)
        self._duration = gatherer.histogram(
            Instrument("embed.engine.duration", "s", "time of one engine step", composed), _DURATION_BOUNDS_S
        )
        self._tokens = gatherer.histogram(
            Instrument("embed.engine.step.tokens", "{token}", "tokens of one engine step", composed), _TOKEN_BOUNDS
        )
        self._idle = gatherer.histogram(
            Instrument("embed.engine.idle", "s", "the engine's idle time before a step"), _IDLE_BOUNDS_S
        )
        self._queries = gatherer.counter(Instrument("embed.engine.queries", "{query}", "queries computed"))
        self._batches = gatherer.counter(Instrument("embed.engine.batches", "{batch}", "batches computed"))
        self._failed = gatherer.counter(
            Instrument("embed.engine.failed_steps", "{step}", "steps that the engine raised on", composed)
        )
        self._rebuilds = gatherer.counter(Instrument("embed.engine.rebuilds", "{rebuild}", "engines that broke"))
        self._fallbacks = gatherer.counter(
            Instrument("embed.engine.fallbacks", "{fallback}", "starts with the general engine instead of the direct")
        )
        self._refused = gatherer.counter(
            Instrument("embed.engine.refused", "{refusal}", "batches and queries refused or failed", ("what", "code"))
        )
        queued = Instrument("embed.engine.queued_tokens", "{token}", "tokens that wait for the engine")
        gatherer.gauges([queued], lambda: {queued: {(): queued_tokens()}})

    def step(self, report: StepReport) -> None:
        """One step that answered its batches."""
        self._duration.record(report.duration_s, report.composition.value)
        self._tokens.record(report.tokens, report.composition.value)
        self._idle.record(report.idle_before_s)
        self._queries.add(report.queries)
        self._batches.add(report.batches)

    def failed_step(self, composition: Composition) -> None:
        """One step that the engine raised on."""
        self._failed.add(1, composition.value)

    def rebuild(self) -> None:
        """The engine broke."""
        self._rebuilds.add(1)

    def fallback(self) -> None:
        """The general engine serves where the direct one was hoped for."""
        self._fallbacks.add(1)

    def refused(self, code: grpc.StatusCode, queries: int) -> None:
        """A batch (`queries` 0), or so many of a batch's queries."""
        self._refused.add(queries or 1, "query" if queries else "batch", code.name)
