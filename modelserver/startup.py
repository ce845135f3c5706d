"""Bring an engine up on its own thread: load, check, warm up, and measure its profile once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from modelserver.engines.choice import build, build_generator
from modelserver.engines.engine import Engine, EngineFacts, Generator
from modelserver.engines.synthetic import SyntheticEngine
from modelserver.engines.warm_up import warm_up
from modelserver.model_files import ModelFiles
from modelserver.profile import store
from modelserver.profile.generation import measure as measure_cost
from modelserver.profile.measure import Profile, ProfileOwner, SweepPlan, known, measure, summary
from modelserver.scheduler.generation_steps import StepLimits
from modelserver.scheduler.memory import MemoryForm, MemoryLimit
from modelserver.scheduler.merge import MergeLimits
from modelserver.scheduler.step_queue import QueueBounds
from modelserver.scheduler.step_tokens import StepCost, StepTokens
from modelserver.settings import ModelServerSettings

_log = logging.getLogger(__name__)

_QUEUE_STEPS = 8
"""Full steps that may wait: more than two batches of each of several aggregators; beyond, a batch is sent elsewhere."""
_LARGEST_CPU_STEP, _LARGEST_GPU_STEP = 1024, 8192
"""Tokens of the largest step that is measured. Knees near 250 on a CPU and 600 on a GPU are known (docs/results.md)."""
_RUNS, _MIN_RUNS = 15, 3
"""Rounds over all totals: medians of 15 no longer move, those of fewer than 3 are no medians."""


@dataclass(slots=True)
class EngineStart:
    """Builds the engine, at the start and again after it broke; what its steps take is measured once, and kept."""

    settings: ModelServerSettings
    files: ModelFiles
    on_fallback: Callable[[], None]
    facts: EngineFacts | None = field(default=None, init=False)
    profile: Profile | None = field(default=None, init=False)
    """Of a model that embeds; its `backlog_tokens` are measured later, through the server."""
    cost: StepCost | None = field(default=None, init=False)
    """Of a model that generates."""

    def embedding(self) -> Engine:
        """Load a model that embeds, on the calling thread. Raises CannotStart."""
        began_s = self._loading()
        choice = build(self.settings, self.files)
        self._loaded(choice.engine.facts, began_s)
        if choice.fallback:
            self.on_fallback()
        warm_up(choice.engine)
        if self.facts is None:
            self.profile = had_profile(choice.engine, self.settings, self.files)
        self.facts = choice.engine.facts
        return choice.engine

    def generating(self) -> Generator:
        """Load a model that generates, on the calling thread. Raises CannotStart."""
        began_s = self._loading()
        engine = build_generator(self.settings, self.files)
        self._loaded(engine.facts, began_s)
        if self.cost is None:
            self.cost = _step_cost(self.settings, engine)
            _log.info("measured the steps", extra={"stage": "profile", **asdict(self.cost)})
        self.facts = engine.facts
        return engine

    def limits(self, facts: EngineFacts) -> StepLimits:
        """The limits of the steps of a model that generates."""
        assert self.cost is not None, "An engine serves whose steps were not measured. This is a bug."
        wanted = self.settings.generation
        tokens = StepTokens(
            self.cost, wanted.time_per_output_token_s, facts.step_token_capacity, facts.step_query_capacity
        )
        if wanted.memory_limit is MemoryForm.OFF:
            return StepLimits(tokens, None)
        return StepLimits(tokens, MemoryLimit(wanted.memory_limit, facts.kv_tokens, facts.max_input_tokens))

    def _loading(self) -> float:
        _log.info("loading the model", extra={"stage": "load", "path": str(self.files.path)})
        return time.monotonic()

    def _loaded(self, facts: EngineFacts, began_s: float) -> None:
        fields = {
            "engine": facts.kind,
            "dtype": facts.dtype,
            "device": facts.device,
            "step_tokens": facts.step_token_capacity,
            "kv_tokens": facts.kv_tokens,
            "took_s": round(time.monotonic() - began_s, 3),
        }
        _log.info("loaded the model", extra={"stage": "load", **fields})


def _step_cost(settings: ModelServerSettings, engine: Generator) -> StepCost:
    """Measured; a synthetic engine's is known."""
    if settings.engine.kind == "synthetic":
        synthetic = settings.synthetic
        return StepCost(synthetic.fixed_s, synthetic.per_token_s, synthetic.per_token_s)
    return measure_cost(engine)


def had_profile(engine: Engine, settings: ModelServerSettings, files: ModelFiles) -> Profile | None:
    """The supplied profile, else the cached one, else one measured now (and cached); None where it is switched off.

    A synthetic engine's is known without. Raises CannotStart for a supplied profile that belongs to something else.
    """
    wanted, plan = settings.profile, sweep_plan(settings, engine.facts)
    owner = profile_owner(settings, engine.facts, files)
    if wanted.file is not None:
        profile = store.load(wanted.file, owner)
        _log.info("took the supplied profile", extra={"stage": "profile", **summary(profile)})
        return profile
    if isinstance(engine, SyntheticEngine):
        return known(engine.step_s, owner, plan.max_tokens, engine.facts.step_token_capacity)
    cached = store.cached(wanted.cache, owner, plan)
    if cached is not None:
        _log.info("took the cached profile", extra={"stage": "profile", **summary(cached)})
        return cached
    if not wanted.enabled:
        return None
    _log.info("measuring the saturation profile", extra={"stage": "profile", "max_tokens": plan.max_tokens})
    return measure(engine, owner, plan)


def keep_profile(profile: Profile, settings: ModelServerSettings, facts: EngineFacts) -> None:
    """Cache a profile that was measured, for the next start."""
    file = store.cache_file(settings.profile.cache, profile.owner, sweep_plan(settings, facts))
    try:
        store.save(profile, file)
    except OSError as error:
        _log.warning("the profile cannot be cached", extra={"error": str(error)})


def profile_owner(settings: ModelServerSettings, facts: EngineFacts, files: ModelFiles) -> ProfileOwner:
    """What a profile of this engine belongs to."""
    return ProfileOwner(
        model=settings.served_name,
        revision=files.revision,
        dtype=facts.dtype,
        engine=facts.kind,
        engine_version=facts.version,
        device=facts.device,
    )


def queue_bounds(facts: EngineFacts) -> QueueBounds:
    """What a step of this engine holds, and how many tokens may wait for one."""
    limits = MergeLimits(facts.step_token_capacity, facts.step_query_capacity)
    return QueueBounds(limits, _QUEUE_STEPS * facts.step_token_capacity)


def sweep_plan(settings: ModelServerSettings, facts: EngineFacts) -> SweepPlan:
    """How much to measure on this engine."""
    largest = _LARGEST_CPU_STEP if facts.on_cpu else _LARGEST_GPU_STEP
    return SweepPlan(min(largest, facts.step_token_capacity), settings.profile.budget_s, _RUNS, _MIN_RUNS)
