"""The metrics of generation, recorded once a step on the engine's thread."""

from __future__ import annotations

from k8s.pod.metrics_buffer import MetricsBuffer
from modelserver.metrics import DURATION_BOUNDS_S
from modelserver.wings.generation.steps import GenerationStep


class GenerationMetrics:
    """The instruments."""

    def __init__(self, buffer: MetricsBuffer) -> None:
        self._step = buffer.histogram(
            "tokenbatch.generate.engine.duration",
            "s",
            "time of one engine step of a model that generates",
            DURATION_BOUNDS_S,
        )
        self._generated = buffer.counter(
            "tokenbatch.generate.engine.tokens", "{token}", "prompt tokens and new tokens", "kind"
        )

    def step(self, step: GenerationStep) -> None:
        self._step.record(step.duration_s)
        self._generated.add(step.prefill_tokens, "prompt")
        self._generated.add(step.new_tokens, "new")

    def failed_step(self, duration_s: float) -> None:
        """`duration_s`: of a step that raised; 0: of one whose tokens meant nothing, which `step` records as well."""
        if duration_s:
            self._step.record(duration_s)
