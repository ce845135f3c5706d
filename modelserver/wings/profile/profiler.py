"""Take the profile of an engine at the start: the supplied one, a cached one, or one that is measured now."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

from typing_extensions import override

from modelserver.engines.engine import EngineFacts, Measurable, StepThreads
from modelserver.model_files import ModelFiles
from modelserver.scheduler.step_queue import StepQueue
from modelserver.service.description import Description
from modelserver.settings import ModelServerSettings
from modelserver.startup import Profiler
from modelserver.wings.profile import store
from modelserver.wings.profile.measure import Profile, ProfileOwner, SweepPlan, known, measure, summary
from modelserver.wings.profile.settings import ProfileSettings
from modelserver.wings.profile.threads import measure_threads
from modelserver.wings.profile.throughput import with_backlog
from protos.modelserver.v1 import modelserver_pb2 as pb

_log = logging.getLogger(__name__)

_LARGEST_CPU_STEP, _LARGEST_GPU_STEP = 1024, 8192
"""Tokens of the largest step that is measured. Knees near 250 on a CPU and 600 on a GPU are known (docs/results.md)."""
_RUNS, _MIN_RUNS = 15, 3
"""Rounds over all totals: medians of 15 no longer move, those of fewer than 3 are no medians."""


class SaturationProfiler(Profiler):
    """Takes or measures step time by tokens, and the size from which a step is worth all threads; once for all engines.

    The threads come first: step times depend on them.
    """

    def __init__(self, settings: ModelServerSettings, files: ModelFiles) -> None:
        super().__init__(settings, files)
        self.profile: Profile | None = None
        self._threaded_tokens: int | None = None

    @property
    @override
    def message(self) -> pb.SaturationProfile | None:
        return described(self.profile) if self.profile is not None else None

    @override
    def built(self, engine: Measurable, threads: StepThreads | None = None) -> None:
        if self.profile is None:
            self.profile = found(engine, self.settings, self.files)
            if self.profile is not None and self._threaded_tokens is None:
                self._threaded_tokens = self.profile.threaded_tokens
        if threads is not None:
            if self._threaded_tokens is None:
                self._threaded_tokens = measure_threads(engine, threads)
            threads.threaded_tokens = self._threaded_tokens
        if self.profile is None:
            self.profile = measured(engine, self.settings, self.files)

    @override
    async def before_serving(self, queue: StepQueue, description: Description) -> None:
        """Add what was measured here to the profile, its `backlog_tokens` through the server, and keep it."""
        wanted, profile = self.settings.group(ProfileSettings), self.profile
        if wanted is None or wanted.file is not None or profile is None:
            return
        whole = replace(profile, threaded_tokens=self._threaded_tokens)
        if not profile.curve.backlog_tokens:
            whole = await with_backlog(whole, queue, description)
        elif whole == profile:
            return
        self.profile = whole
        keep(whole, self.settings, description.facts)


def found(engine: Measurable, settings: ModelServerSettings, files: ModelFiles) -> Profile | None:
    """The supplied profile, else the cached one; None where there is neither.

    A synthetic engine's is known without. Raises CannotStart for a supplied profile that belongs to something else.
    """
    wanted = settings.group(ProfileSettings)
    if wanted is None:
        return None
    owner, plan = owner_of(settings, engine.facts, files), sweep_plan(settings, engine.facts)
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


def measured(engine: Measurable, settings: ModelServerSettings, files: ModelFiles) -> Profile | None:
    """The profile measured now; None where that is switched off."""
    wanted = settings.group(ProfileSettings)
    if wanted is None or not wanted.enabled:
        return None
    owner, plan = owner_of(settings, engine.facts, files), sweep_plan(settings, engine.facts)
    _log.info("measuring the saturation profile", extra={"stage": "profile", "max_tokens": plan.max_tokens})
    return measure(engine, owner, plan)


def keep(profile: Profile, settings: ModelServerSettings, facts: EngineFacts) -> None:
    """Write a profile into the cache; a log line says so where that cannot be."""
    wanted = settings.group(ProfileSettings) or ProfileSettings()
    try:
        store.save(profile, store.cache_file(wanted.cache, profile.owner, sweep_plan(settings, facts)))
    except OSError as error:
        _log.warning("the profile cannot be cached", extra={"error": str(error)})


def owner_of(settings: ModelServerSettings, facts: EngineFacts, files: ModelFiles) -> ProfileOwner:
    """The setup that a profile measured now belongs to."""
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


def sweep_plan(settings: ModelServerSettings, facts: EngineFacts) -> SweepPlan:
    """The sweep of an engine on this device."""
    budget_s = (settings.group(ProfileSettings) or ProfileSettings()).budget_s
    largest = _LARGEST_CPU_STEP if facts.on_cpu else _LARGEST_GPU_STEP
    return SweepPlan(min(largest, facts.step_token_capacity), budget_s, _RUNS, _MIN_RUNS)


def described(profile: Profile) -> pb.SaturationProfile:
    """A profile, as `Describe` publishes it."""
    curve = profile.curve
    return pb.SaturationProfile(
        floor_s=curve.floor_s,
        fixed_s=curve.fixed_s,
        per_token_s=curve.per_token_s,
        saturation_point=curve.saturation_point,
        rule=curve.rule.value,
        max_tokens=curve.max_tokens,
        points=[pb.ProfilePoint(step_tokens=tokens, step_duration_s=time_s) for tokens, time_s in profile.points],
        measured_at=profile.measured_at,
        backlog_tokens=curve.backlog_tokens,
        eager_s=curve.eager_s,
    )
