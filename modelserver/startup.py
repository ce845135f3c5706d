"""Bring an engine up on its own thread: load, check, warm up, and have it measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from modelserver.engines.choice import EngineWings, build
from modelserver.engines.engine import CountLaunch, Engine, EngineFacts, Measurable, StepThreads, Task
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles
from modelserver.scheduler.queued_batch import MergeLimits
from modelserver.scheduler.step_queue import QueueBounds, StepQueue
from modelserver.service.description import Description
from modelserver.settings import ModelServerSettings
from modelserver.watch import Phase, PhaseWatchdog
from protos.modelserver.v1 import modelserver_pb2 as pb

_log = logging.getLogger(__name__)

_QUEUE_STEPS = 8
"""Full steps that may wait: more than two batches of each of several aggregators; beyond, a batch is sent elsewhere."""


class Profiler:
    """Measures an engine at the start. This one measures nothing; the wing `profile` does.

    Without a profile aggregators guess the time of a step until replies correct it, and each step gets all threads.
    """

    def __init__(self, settings: ModelServerSettings, files: ModelFiles) -> None:
        self.settings = settings
        self.files = files

    @property
    def message(self) -> pb.SaturationProfile | None:
        """The profile to publish; None while there is none."""
        return None

    def built(self, engine: Measurable, threads: StepThreads | None = None) -> None:
        """Measure an engine that was loaded and warmed up, also one built again after it broke; on its own thread.

        `threads`: of its steps, where it computes on a CPU. Raises CannotStart.
        """

    async def before_serving(self, queue: StepQueue, description: Description) -> None:
        """Measure more through the queue, which serves no client yet; each time that an engine is ready."""


@dataclass(slots=True)
class EngineStart:
    """Builds the engine, at the start and again after it broke."""

    settings: ModelServerSettings
    files: ModelFiles
    wings: EngineWings
    on_fallback: Callable[[], None]
    count_launch: CountLaunch
    watch: PhaseWatchdog
    profiler: Profiler
    facts: EngineFacts | None = field(default=None, init=False)
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
            self.profiler.built(choice.engine, choice.threads)
        self.facts = choice.engine.facts
        return choice.engine

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


def queue_bounds(facts: EngineFacts) -> QueueBounds:
    """The size of a step of this engine, and of the queue before it, in tokens."""
    limits = MergeLimits(facts.step_token_capacity, facts.step_query_capacity)
    return QueueBounds(limits, _QUEUE_STEPS * facts.step_token_capacity)


def warm_up(engine: Engine) -> None:
    """Run a step of full capacity on the engine's thread, so that its memory is allocated before the first batch.

    Raises CannotStart when that fails.
    """
    facts = engine.facts
    began_s = time.monotonic()
    _log.info("warming up", extra={"stage": "warm-up"})
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
