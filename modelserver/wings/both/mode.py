"""The mode of a model that embeds and generates: embeddings enter the steps of generation."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import NoReturn

from typing_extensions import override

from k8s.pod.metrics_buffer import BufferedCounter, MetricsBuffer
from modelserver.engines.choice import loaded, poison_of
from modelserver.engines.engine import Task
from modelserver.errors import CannotStart, FewerTasks
from modelserver.loop import EngineLoop
from modelserver.model_files import ModelFiles
from modelserver.modes import Parts
from modelserver.settings import ModelServerSettings
from modelserver.startup import queue_bounds
from modelserver.wings.both.alone import EmbeddingsAlone
from modelserver.wings.both.embedding import embedding_of
from modelserver.wings.both.embedding_batches import EmbeddingBatches
from modelserver.wings.both.generator import EMBED_AND_GENERATE, MixedGenerator
from modelserver.wings.both.self_check import difference
from modelserver.wings.both.synthetic import SyntheticMixedGenerator
from modelserver.wings.generation.generator import Generator
from modelserver.wings.generation.metrics import GenerationMetrics
from modelserver.wings.generation.mode import GenerationStart, loop_of, synthetic_generation

_log = logging.getLogger(__name__)


class Both:
    """A model that embeds and generates in the same steps."""

    name = "both"
    tasks = EMBED_AND_GENERATE

    def suits(self, settings: ModelServerSettings, files: ModelFiles) -> bool:
        if settings.model.adapter:
            embedding_of(settings, files)
            return True
        if not (files.is_causal and files.embeds and files.has_generation_config):
            return False
        try:
            embedding_of(settings, files)
        except CannotStart as error:
            _log.info("the model only embeds", extra={"reason": str(error)})
            return False
        return True

    def check(self, settings: ModelServerSettings, files: ModelFiles) -> None:
        embedding_of(settings, files)

    def declare(self, buffer: MetricsBuffer) -> None:
        GenerationMetrics(buffer)
        _fallbacks(buffer)

    def loop(self, parts: Parts) -> EngineLoop[Generator]:
        unclaimed = parts.serving.unclaimed
        embeddings = EmbeddingBatches(
            parts.queue, queue_bounds, parts.on_step, parts.on_failed_step, unclaimed=unclaimed
        )
        return loop_of(parts, MixedStart(parts), embeddings)


class MixedStart(GenerationStart[MixedGenerator]):
    """Loads an engine of both tasks, and checks that they leave each other alone."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.start, lambda: build(parts.settings, parts.files))
        self._fallbacks = _fallbacks(parts.buffer)

    @override
    def check(self, engine: MixedGenerator) -> None:
        """Raises FewerTasks if the tasks have other results in shared steps."""
        start = self.start
        if start.settings.engine.kind == "synthetic":
            return
        began_s = time.monotonic()
        reason = difference(engine)
        if reason is not None:
            engine.close()
            self.disturbed(f"embeddings and generations cannot share steps: {reason}")
        _log.info("checked shared steps", extra={"stage": "check", "took_s": round(time.monotonic() - began_s, 3)})

    def disturbed(self, reason: str) -> NoReturn:
        """Raises FewerTasks: the model is served for the task that its files name."""
        files = self.start.files
        task = Task.EMBED if files.embeds and files.adapter is None else Task.GENERATE
        self._fallbacks.add(1)
        raise FewerTasks(reason, frozenset((task,)))

    @override
    def measure(self, engine: MixedGenerator) -> None:
        self.start.profiler.built(EmbeddingsAlone(engine))


def build(settings: ModelServerSettings, files: ModelFiles) -> MixedGenerator:
    """Load a model that embeds and generates, on the calling thread. Raises CannotStart."""
    if settings.engine.kind == "synthetic":
        return _synthetic(settings, files)
    from modelserver.wings.both.vllm_generator import load  # noqa: PLC0415 - loads torch and vLLM

    embedding = embedding_of(settings, files)
    return loaded(lambda options: load(options, embedding), settings, files)


def _synthetic(settings: ModelServerSettings, files: ModelFiles) -> MixedGenerator:
    synthetic, facts = settings.synthetic, synthetic_generation(settings, files)
    facts = replace(
        facts,
        tasks=EMBED_AND_GENERATE,
        dimensions=synthetic.dimensions or files.hidden_size,
        max_input_tokens=min(facts.max_input_tokens - 1, facts.step_token_capacity),
    )
    time.sleep(synthetic.load_s)
    return SyntheticMixedGenerator(
        facts, synthetic.fixed_s, synthetic.per_token_s, poison_of(settings), close_s=synthetic.close_s
    )


def _fallbacks(buffer: MetricsBuffer) -> BufferedCounter:
    return buffer.counter(
        "tokenbatch.mixed.engine.fallbacks", "{fallback}", "starts with one task because the self-check of both failed"
    )
