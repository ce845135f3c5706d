"""The mode of a model that generates: load its engine, measure the cost of its steps, run them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Generic, TypeVar

from k8s.pod.metrics_buffer import MetricsBuffer
from modelserver.engines.choice import facts_of_synthetic, loaded, poison_of
from modelserver.engines.engine import EngineFacts, Task
from modelserver.errors import CannotStart
from modelserver.loop import EngineLoop
from modelserver.model_files import ModelFiles
from modelserver.modes import Parts
from modelserver.scheduler.queued_batch import Composition
from modelserver.settings import ModelServerSettings
from modelserver.startup import EngineStart
from modelserver.watch import Phase
from modelserver.wings.generation.call import GenerateCalls
from modelserver.wings.generation.cost import measure
from modelserver.wings.generation.generator import Generator
from modelserver.wings.generation.metrics import GenerationMetrics
from modelserver.wings.generation.settings import GenerationSettings, MemoryForm
from modelserver.wings.generation.sharing import SharedSteps
from modelserver.wings.generation.step_limits import MemoryLimit, StepCost, StepLimits, StepTokens
from modelserver.wings.generation.steps import GenerationSteps
from modelserver.wings.generation.synthetic import SyntheticGenerator
from protos.modelserver.v1 import modelserver_pb2 as pb

_log = logging.getLogger(__name__)

_SYNTHETIC_SEQUENCES = 256  # as many as vLLM's own default, max_num_seqs
_SYNTHETIC_KV_TOKENS = 1 << 18  # 256 sequences of 1,024 tokens


class Generation:
    """A model that only generates."""

    name = "generate"
    tasks = frozenset((Task.GENERATE,))

    def suits(self, settings: ModelServerSettings, files: ModelFiles) -> bool:
        del settings
        return files.generates

    def check(self, settings: ModelServerSettings, files: ModelFiles) -> None:
        del files
        if settings.model.adapter:
            raise CannotStart(f"model.adapter embeds with task both, and model.task is {self.name}")

    def declare(self, buffer: MetricsBuffer) -> None:
        GenerationMetrics(buffer)

    def loop(self, parts: Parts) -> EngineLoop[Generator]:
        start: GenerationStart[Generator] = GenerationStart(parts.start, lambda: build(parts.settings, parts.files))
        return loop_of(parts, start)


G = TypeVar("G", bound=Generator)


class GenerationStart(Generic[G]):
    """Loads an engine that generates, at the start and again after it broke; measures its steps once."""

    def __init__(self, start: EngineStart, build: Callable[[], G]) -> None:
        self.start = start
        self._build = build
        self._cost: StepCost | None = None

    def load(self) -> G:
        """The engine, on the calling thread. Raises CannotStart, FewerTasks."""
        start = self.start
        began_s = start.loading()
        with start.watch.phase(Phase.LOAD):
            engine = self._build()
            start.loaded(engine.facts, began_s)
            self.check(engine)
        if self._cost is None:
            with start.watch.phase(Phase.PROFILE):
                self._cost = _step_cost(start.settings, engine)
                _log.info("measured the steps", extra={"stage": "profile", **asdict(self._cost)})
                self.measure(engine)
        start.generation = _described(self._cost, engine.facts)
        start.facts = engine.facts
        return engine

    def check(self, engine: G) -> None:
        """Check an engine that was loaded; the wing `both` compares its tasks. Raises FewerTasks."""

    def measure(self, engine: G) -> None:
        """Measure more than the cost of steps, once; the wing `both` measures a profile."""

    def limits(self, facts: EngineFacts) -> StepLimits:
        assert self._cost is not None, "An engine serves whose steps were not measured. This is a bug."
        wanted = self.start.settings.group(GenerationSettings) or GenerationSettings()
        tokens = StepTokens(self._cost, wanted.time_per_output_token_s, facts.step_token_capacity, facts.max_sequences)
        if wanted.memory_limit is MemoryForm.OFF:
            return StepLimits(tokens, None)
        return StepLimits(tokens, MemoryLimit(wanted.memory_limit, facts.kv_tokens, facts.context_tokens))


def loop_of(parts: Parts, start: GenerationStart[G], shared: SharedSteps | None = None) -> EngineLoop[Generator]:
    """The loop of an engine that generates, whose steps other work may share."""
    metrics = GenerationMetrics(parts.buffer)

    def failed(duration_s: float) -> None:
        parts.on_failed_step(Composition.MERGED, 0.0)
        metrics.failed_step(duration_s)

    steps = GenerationSteps(
        start.limits, on_step=metrics.step, on_failed_step=failed, shared=shared, unclaimed=parts.serving.unclaimed
    )
    parts.serving.generation = GenerateCalls(steps)
    return EngineLoop(start.load, steps, parts.on_state, parts.start.watch)


def build(settings: ModelServerSettings, files: ModelFiles) -> Generator:
    """Load a model that generates, on the calling thread. Raises CannotStart."""
    if settings.engine.kind == "synthetic":
        synthetic = settings.synthetic
        facts = synthetic_generation(settings, files)
        time.sleep(synthetic.load_s)
        return SyntheticGenerator(
            facts, synthetic.fixed_s, synthetic.per_token_s, poison_of(settings), close_s=synthetic.close_s
        )
    from modelserver.wings.generation.vllm_generator import load  # noqa: PLC0415 - loads torch and vLLM

    return loaded(load, settings, files)


def synthetic_generation(settings: ModelServerSettings, files: ModelFiles) -> EngineFacts:
    """The facts of a synthetic engine that generates."""
    facts = facts_of_synthetic(settings, files)
    return replace(
        facts,
        tasks=frozenset((Task.GENERATE,)),
        context_tokens=facts.max_input_tokens,
        max_sequences=_SYNTHETIC_SEQUENCES,
        kv_tokens=_SYNTHETIC_KV_TOKENS,
    )


def _step_cost(settings: ModelServerSettings, engine: Generator) -> StepCost:
    if settings.engine.kind == "synthetic":
        synthetic = settings.synthetic
        return StepCost(synthetic.fixed_s, synthetic.per_token_s, synthetic.per_token_s)
    return measure(engine)


def _described(cost: StepCost, facts: EngineFacts) -> pb.GenerationProfile:
    return pb.GenerationProfile(
        fixed_s=cost.fixed_s,
        per_sequence_s=cost.per_sequence_s,
        per_token_s=cost.per_token_s,
        kv_tokens=facts.kv_tokens,
        max_sequences=facts.max_sequences,
        context_tokens=facts.context_tokens,
    )
