"""Bring an engine up on its own thread: load, check, warm up, and measure its profile once."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from modelserver.engines.choice import Choice, EngineWings, build
from modelserver.engines.engine import CountLaunch, Engine, EngineFacts, Task
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles
from modelserver.profile import store
from modelserver.profile.measure import Measurable, Profile, ProfileOwner, SweepPlan, known, measure, summary
from modelserver.profile.threads import measure_threads
from modelserver.scheduler.queued_batch import MergeLimits
from modelserver.scheduler.step_queue import QueueBounds
from modelserver.settings import ModelServerSettings
from modelserver.watch import Phase, PhaseWatchdog
from protos.modelserver.v1 import modelserver_pb2 as pb

_log = logging.getLogger(__name__)

_QUEUE_STEPS = 8
"""Full steps that may wait: more than two batches of each of several aggregators; beyond, a batch is sent elsewhere."""
_LARGEST_CPU_STEP, _LARGEST_GPU_STEP = 1024, 8192
"""Tokens of the largest step that is measured. Knees near 250 on a CPU and 600 on a GPU are known (docs/results.md)."""
_RUNS, _MIN_RUNS = 15, 3
"""Rounds over all totals: medians of 15 no longer move, those of fewer than 3 are no medians."""


@dataclass(slots=True)
class EngineStart:
    """Builds the engine, at the start and again after it broke; the cost of its steps is measured once, and kept."""

    settings: ModelServerSettings
    files: ModelFiles
    wings: EngineWings
    on_fallback: Callable[[], None]
    count_launch: CountLaunch
    watch: PhaseWatchdog
    facts: EngineFacts | None = field(default=None, init=False)
    profile: Profile | None = field(default=None, init=False)
    """The profile of a model that embeds; its `backlog_tokens` are measured later, through the server."""
    threaded_tokens: int | None = field(default=None, init=False)
    """The size from which steps take all threads, for a model that embeds on a CPU."""
    generation: pb.GenerationProfile | None = field(default=None, init=False)
    """Of a model that generates, as it is described."""

    def batches(self, task: Task) -> Engine:
        """Load a model for a task that gives one row a query, on the calling thread. Raises CannotStart."""
        began_s = self.loading()
        with self.watch.phase(Phase.LOAD):
            choice = build(self.settings, self.files, task, self.wings, self.count_launch)
        self.loaded(choice.engine.facts, began_s)
        if choice.fallback:
            self.on_fallback()
        with self.watch.phase(Phase.PROFILE):
            warm_up(choice.engine)
            self._share_threads(choice)
            if self.facts is None:
                self.profile = load_profile(choice.engine, self.settings, self.files)
        self.facts = choice.engine.facts
        return choice.engine

    def _share_threads(self, choice: Choice) -> None:
        if choice.threads is None:
            return
        if self.threaded_tokens is None:
            self.threaded_tokens = measure_threads(choice.engine, choice.threads)
        choice.threads.threaded_tokens = self.threaded_tokens

    def loading(self) -> float:
        """Log that a model is being loaded; the present time."""
        _log.info("loading the model", extra={"stage": "load", "path": str(self.files.path)})
        return time.monotonic()

    def loaded(self, facts: EngineFacts, began_s: float) -> None:
        """Log that it was loaded."""
        fields = {
            "engine": facts.kind,
            "dtype": facts.dtype,
            "device": facts.device,
            "step_tokens": facts.step_token_capacity,
            "kv_tokens": facts.kv_tokens,
            "took_s": round(time.monotonic() - began_s, 3),
        }
        _log.info("loaded the model", extra={"stage": "load", **fields})


def load_profile(engine: Measurable, settings: ModelServerSettings, files: ModelFiles) -> Profile | None:
    """The supplied profile, else the cached one, else one measured now (and cached); None where it is switched off.

    A synthetic engine's is known without. Raises CannotStart for a supplied profile that belongs to something else.
    """
    wanted, plan = settings.profile, sweep_plan(settings, engine.facts)
    owner = profile_owner(settings, engine.facts, files)
    if wanted.file is not None:
        profile = store.load(wanted.file, owner)
        _log.info("took the supplied profile", extra={"stage": "profile", **summary(profile)})
        return profile
    if settings.engine.kind == "synthetic":
        synthetic = settings.synthetic

        def step_s(tokens: int) -> float:
            return synthetic.fixed_s + synthetic.per_token_s * tokens

        return known(step_s, owner, plan.max_tokens, engine.facts.step_token_capacity)
    cached = store.cached(wanted.cache, owner, plan)
    if cached is not None:
        _log.info("took the cached profile", extra={"stage": "profile", **summary(cached)})
        return cached
    if not wanted.enabled:
        return None
    _log.info("measuring the saturation profile", extra={"stage": "profile", "max_tokens": plan.max_tokens})
    return measure(engine, owner, plan)


def keep_profile(profile: Profile, settings: ModelServerSettings, facts: EngineFacts) -> None:
    file = store.cache_file(settings.profile.cache, profile.owner, sweep_plan(settings, facts))
    try:
        store.save(profile, file)
    except OSError as error:
        _log.warning("the profile cannot be cached", extra={"error": str(error)})


def profile_owner(settings: ModelServerSettings, facts: EngineFacts, files: ModelFiles) -> ProfileOwner:
    return ProfileOwner(
        model=settings.served_name,
        revision=files.revision,
        dtype=facts.dtype,
        engine=facts.kind,
        engine_version=facts.version,
        device=facts.device,
        options=json.dumps(settings.engine.vllm_options | _shared(settings), sort_keys=True),
        graphs=" ".join(map(str, facts.capture_sizes)) if settings.engine.graphs != "off" else "",
    )


def _shared(settings: ModelServerSettings) -> dict[str, float]:
    """The share of the GPU, on which a step's time depends, unless it is all of it."""
    return {} if settings.engine.gpu_share == 1.0 else {"gpu_share": settings.engine.gpu_share}


def queue_bounds(facts: EngineFacts) -> QueueBounds:
    """The size of a step of this engine, and of the queue before it, in tokens."""
    limits = MergeLimits(facts.step_token_capacity, facts.step_query_capacity)
    return QueueBounds(limits, _QUEUE_STEPS * facts.step_token_capacity)


def sweep_plan(settings: ModelServerSettings, facts: EngineFacts) -> SweepPlan:
    largest = _LARGEST_CPU_STEP if facts.on_cpu else _LARGEST_GPU_STEP
    return SweepPlan(min(largest, facts.step_token_capacity), settings.profile.budget_s, _RUNS, _MIN_RUNS)


def warm_up(engine: Engine) -> None:
    """Run a step of full capacity on the engine's thread, so that its memory is allocated before the first batch.

    Raises CannotStart when that fails.
    """
    facts = engine.facts
    began_s = time.monotonic()
    whole, rest = divmod(facts.step_token_capacity, facts.max_input_tokens)
    lengths = np.array(([facts.max_input_tokens] * whole + [rest] * (rest > 0))[: facts.step_query_capacity], np.int32)
    token_ids = np.random.default_rng(0).integers(0, facts.vocabulary_size, int(lengths.sum()), np.int32)
    try:
        engine.prepare(token_ids, lengths).execute()
    except Exception as error:
        raise CannotStart(
            f"a step of {token_ids.size} tokens fails ({type(error).__name__}: {error}): set ENGINE__STEP_TOKENS lower"
        ) from error
    took_s = round(time.monotonic() - began_s, 3)
    _log.info("warmed up", extra={"stage": "warm-up", "step_tokens": token_ids.size, "took_s": took_s})
