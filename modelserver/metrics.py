"""The model server's metrics, recorded once per step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import grpc

from k8s.pod.metrics_buffer import Instrument, Labels, MetricsBuffer
from modelserver.engines.engine import Task
from modelserver.scheduler.queued_batch import Composition, StepReport

DURATION_BOUNDS_S = (
    0.0002, 0.0003, 0.0004, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004,
    0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0,
)  # fmt: skip
"""Fine from 0.2 to 4 ms: a GPU takes 0.35 ms for a short step with CUDA graphs, and 2 ms without."""
_TOKEN_BOUNDS = (8, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384, 32768)
_IDLE_BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0)


_QUEUED = Instrument("tokenbatch.engine.queued_tokens", "{token}", "tokens that wait for the engine")
_MFU = Instrument("tokenbatch.engine.mfu", "1", "matrix operations of recent steps, as a share of the peak")
_RECENT = 64  # steps


class Utilisation:
    """The share of a device's operations that steps used in their time (model FLOPs utilisation, MFU)."""

    def __init__(self) -> None:
        self.per_token = 0.0
        """Seconds that the device at its peak takes for a token's operations; 0: not known."""
        self._steps: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def step(self, tokens: int, duration_s: float) -> None:
        self._steps.append((tokens, duration_s))

    def values(self) -> Mapping[Labels, float]:
        """Of the last 64 steps; empty where it is not known. Any thread."""
        steps = tuple(self._steps)
        busy_s = sum(duration_s for _, duration_s in steps)
        if not self.per_token or not busy_s:
            return {}
        return {(): self.per_token * sum(tokens for tokens, _ in steps) / busy_s}


class Metrics:
    """The instruments. Steps are recorded on the engine's thread, all else on the event loop."""

    def __init__(self, buffer: MetricsBuffer, queued_tokens: Callable[[], int], task: Task) -> None:
        """`queued_tokens` is read at each collection, on the collector's thread; `task`: of the batches."""
        self._task = task.value
        self.utilisation = Utilisation()
        self._duration = buffer.histogram(
            "tokenbatch.engine.duration", "s", "time of one engine step", DURATION_BOUNDS_S, "composition", "task"
        )
        self._tokens = buffer.histogram(
            "tokenbatch.engine.step.tokens",
            "{token}",
            "tokens of one engine step",
            _TOKEN_BOUNDS,
            "composition",
            "task",
        )
        self._idle = buffer.histogram(
            "tokenbatch.engine.idle", "s", "the engine's idle time before a step", _IDLE_BOUNDS_S
        )
        self._queries = buffer.counter("tokenbatch.engine.queries", "{query}", "queries computed", "task")
        self._queries.add(0, self._task)  # a rate needs the zero before the first
        self._batches = buffer.counter("tokenbatch.engine.batches", "{batch}", "batches computed")
        self._failed = buffer.counter(
            "tokenbatch.engine.failed_steps",
            "{step}",
            "steps that raised, or of which no row was a result",
            "composition",
        )
        self.rebuilds = buffer.counter("tokenbatch.engine.rebuilds", "{rebuild}", "engines built again after a failure")
        self.fallbacks = buffer.counter(
            "tokenbatch.engine.fallbacks", "{fallback}", "starts with EngineCore instead of the direct engine"
        )
        self.launches = buffer.counter(
            "tokenbatch.engine.steps", "{step}", "steps of an engine with CUDA graphs of its own", "launch"
        )
        self._refused = buffer.counter(
            "tokenbatch.engine.refused", "{refusal}", "batches and queries refused or failed", "what", "code"
        )

        def read() -> Mapping[Instrument, Mapping[Labels, float]]:
            return {_QUEUED: {(): queued_tokens()}, _MFU: self.utilisation.values()}

        buffer.gauges((_QUEUED, _MFU), read)

    def step(self, report: StepReport) -> None:
        composition = report.composition.value
        self._duration.record(report.duration_s, composition, self._task)
        self._tokens.record(report.tokens, composition, self._task)
        self._idle.record(report.idle_before_s)
        self._queries.add(report.queries, self._task)
        self.utilisation.step(report.tokens, report.duration_s)
        self._batches.add(report.batches)

    def failed_step(self, composition: Composition, duration_s: float) -> None:
        """`duration_s`: of a step that raised; one with rows that are no result is recorded by `step` as well."""
        self._failed.add(1, composition.value)
        if duration_s:
            self._duration.record(duration_s, composition.value, self._task)

    def refused(self, code: grpc.StatusCode, queries: int) -> None:
        """A refused batch (`queries` 0), or this many refused queries of a batch."""
        self._refused.add(queries or 1, "query" if queries else "batch", code.name)
