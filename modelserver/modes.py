"""The tasks that a model is served for, and the modes that serve more than one row a query; wings have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from k8s.pod.metrics_buffer import MetricsBuffer
from modelserver.engines.choice import SCORES, ScoringOf
from modelserver.engines.engine import Task
from modelserver.engines.rows import rows_of
from modelserver.errors import CannotStart
from modelserver.loop import EngineLoop, StateEvent
from modelserver.model_files import ModelFiles
from modelserver.scheduler.queued_batch import Composition, StepReport
from modelserver.scheduler.step_queue import StepQueue
from modelserver.service.servicer import Serving
from modelserver.settings import ModelServerSettings
from modelserver.startup import EngineStart, Profiler

Started = Callable[[ModelServerSettings, ModelFiles], Profiler]
"""Runs a server until its engine is ready, for a command; returns what measured the engine. Raises CannotStart."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one server that every mode works with; `on_step` and `on_failed_step` count steps of batches."""

    settings: ModelServerSettings
    files: ModelFiles
    buffer: MetricsBuffer
    queue: StepQueue
    serving: Serving
    start: EngineStart
    on_step: Callable[[StepReport], None]
    on_failed_step: Callable[[Composition, float], None]
    on_state: StateEvent


class Mode(Protocol):
    """How a set of tasks is served that the core does not serve by itself."""

    @property
    def name(self) -> str:
        """The value of `model.task` that asks for it."""
        ...

    @property
    def tasks(self) -> frozenset[Task]: ...

    def suits(self, settings: ModelServerSettings, files: ModelFiles) -> bool:
        """Whether `model.task` auto means it for a model that does not score. Raises CannotStart."""
        ...

    def check(self, settings: ModelServerSettings, files: ModelFiles) -> None:
        """Raises CannotStart for a model that cannot be served so."""
        ...

    def declare(self, buffer: MetricsBuffer) -> None:
        """Make its metrics: they are exported before their first event."""
        ...

    def loop(self, parts: Parts) -> EngineLoop[Any]:
        """The loop of its engine, not started."""
        ...


def tasks_of(
    settings: ModelServerSettings, files: ModelFiles, modes: Iterable[Mode], scoring_of: ScoringOf
) -> frozenset[Task]:
    """The tasks that the model serves. Raises CannotStart for settings that contradict each other or the files."""
    name = settings.model.task
    if rows_of(files) is not None:
        return frozenset((Task.EMBED,))
    if name == "auto":
        return _tasks_of_files(settings, files, modes, scoring_of)
    for mode in modes:
        if mode.name == name:
            mode.check(settings, files)
            return mode.tasks
    if name not in (Task.EMBED, *SCORES):
        raise CannotStart(f"model.task is {name}, which this build does not serve: set it to embed, rank or classify")
    if settings.model.adapter:
        raise CannotStart(f"model.adapter embeds with task both, and model.task is {name}")
    task = Task(name)
    if task in SCORES:
        scoring_of(settings, files, task)
    return frozenset((task,))


def _tasks_of_files(
    settings: ModelServerSettings, files: ModelFiles, modes: Iterable[Mode], scoring_of: ScoringOf
) -> frozenset[Task]:
    if files.scores and not settings.model.adapter:
        return frozenset((scoring_of(settings, files, None).task,))
    fitting = (mode.tasks for mode in modes if mode.suits(settings, files))
    return next(fitting, frozenset((Task.EMBED,)))
