"""Drive one engine on a thread of its own: take the next step, run it, answer its batches, survive what it raises."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Thread
from typing import Generic, Protocol, TypeVar

import numpy as np
from typing_extensions import override

from modelserver.engines.engine import Engine, EngineFactory, EngineFacts, Matrix, Step
from modelserver.errors import EngineBroken, ModelServerError, NotServing, StepFailed
from modelserver.scheduler.merge import Composition, Selection
from modelserver.scheduler.queued_batch import Answer, QueuedBatch, StepReport
from modelserver.scheduler.step_queue import NextStep, QueueBounds, StepQueue

_log = logging.getLogger(__name__)


class EngineState(StrEnum):
    """What the engine's thread is at."""

    STARTING = "starting"
    SERVING = "serving"
    REBUILDING = "rebuilding"
    STOPPED = "stopped"
    FAILED = "failed"


E = TypeVar("E", bound="Closable")
StateEvent = Callable[[EngineState, Exception | None], None]
"""Told on the engine's thread of each change of state, and why the engine failed."""


class Closable(Protocol):
    """What every engine is."""

    def close(self) -> None:
        """Free what it holds."""
        ...


class EngineThread(ABC, Generic[E]):
    """A thread that builds one engine, serves with it, and builds it anew after it broke; one kind for each task."""

    def __init__(self, build: Callable[[], E], on_state: StateEvent, clock: Callable[[], float]) -> None:
        """`build` makes the engine, on the engine's thread, at the start and again after it broke."""
        self._build = build
        self._on_state = on_state
        self._clock = clock
        self._running_since_s: float | None = None
        self._thread = Thread(target=self._drive, name="engine", daemon=True)

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end, once it takes no more; whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def running_s(self) -> float:
        """How long the running step has taken so far; 0 when none runs."""
        since_s = self._running_since_s
        return 0.0 if since_s is None else self._clock() - since_s

    @abstractmethod
    def _open(self, engine: E) -> None:
        """Take work from now on."""

    @abstractmethod
    def _steps(self, engine: E) -> None:
        """Run steps until no more is taken and all is done. Raises EngineBroken."""

    @abstractmethod
    def _refuse_waiting(self, reason: str) -> None:
        """Take no more for now, and refuse what waits."""

    def _drive(self) -> None:
        """Build, serve, and build again after a break; the engine's thread from its first to its last line."""
        try:
            engine = self._build()
            while not self._serve(engine):
                self._refuse_waiting("the engine is being rebuilt")
                engine.close()
                engine = self._build()
            engine.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the process must hear of it and end
            self._refuse_waiting("the engine has failed")
            self._on_state(EngineState.FAILED, error)
        else:
            self._on_state(EngineState.STOPPED, None)

    def _serve(self, engine: E) -> bool:
        """Whether it served to the end; else it broke."""
        self._open(engine)
        self._on_state(EngineState.SERVING, None)
        try:
            self._steps(engine)
        except EngineBroken as error:
            _log.exception("the engine broke")
            self._on_state(EngineState.REBUILDING, error)
            return False
        return True


@dataclass(frozen=True, slots=True)
class EngineLoopEvents:
    """Told on the engine's thread: each change of state (with why the engine failed), and each step or failed step."""

    on_state: StateEvent
    on_step: Callable[[StepReport], None]
    on_failed_step: Callable[[Composition], None]


class EngineLoop(EngineThread[Engine]):
    """Embeds: whole batches, one step each or merged, with a staging thread beside the engine's.

    `queue` is where its batches wait, and `bounds` says how many of them an engine takes.
    """

    def __init__(
        self,
        build: EngineFactory,
        queue: StepQueue,
        bounds: Callable[[EngineFacts], QueueBounds],
        events: EngineLoopEvents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(build, events.on_state, clock)
        self._queue = queue
        self._bounds = bounds
        self._events = events
        self._engine: Engine | None = None
        self._idle_since_s = 0.0
        self._staging = Thread(target=self._stage, name="staging", daemon=True)

    @override
    def start(self) -> None:
        """Start both threads."""
        super().start()
        self._staging.start()

    @override
    def _open(self, engine: Engine) -> None:
        self._engine = engine
        self._idle_since_s = self._clock()
        self._queue.open(self._bounds(engine.facts))

    @override
    def _steps(self, engine: Engine) -> None:
        while (following := self._queue.take()) is not None:
            self._run(engine, following)

    @override
    def _refuse_waiting(self, reason: str) -> None:
        for queued in self._queue.drain():
            queued.deliver(NotServing(reason))

    def _run(self, engine: Engine, following: NextStep) -> None:
        selection = following.selection
        try:
            step = following.step or self._prepare(selection.batches)
            start_s = self._running_since_s = self._clock()
            idle_s = start_s - self._idle_since_s
            matrix = step.run()
            _check(matrix, selection)
        except Exception as error:  # noqa: BLE001 - engines raise anything; what follows depends on how it recovers
            self._fail(engine, selection, error)
            return
        finally:
            self._running_since_s = None
            self._idle_since_s = self._clock()
        report = _report(selection, self._idle_since_s - start_s, idle_s)
        self._events.on_step(report)
        _answer(selection.batches, matrix, report, start_s)

    def _fail(self, engine: Engine, selection: Selection[QueuedBatch], error: Exception) -> None:
        """Rerun a merged step's batches apart, report a single one; raises EngineBroken when the engine is."""
        self._events.on_failed_step(selection.composition)
        batches, merged = selection.batches, selection.composition is Composition.MERGED
        _log.warning("a step failed", extra={"batches": len(batches), "error": f"{type(error).__name__}: {error}"})
        try:
            if isinstance(error, EngineBroken):
                raise error
            engine.recover()
        except EngineBroken as broken:
            # Of a merged step nobody knows whose fault it was: UNAVAILABLE, and each tries again by itself.
            _deliver(batches, broken if merged else StepFailed(f"the engine broke: {error}"))
            raise
        if merged:
            self._queue.put_back_isolated(batches, self._clock())
        else:
            _deliver(batches, StepFailed(f"the engine failed: {type(error).__name__}: {error}"))

    def _stage(self) -> None:
        while self._queue.stage(self._prepare):
            pass

    def _prepare(self, queued_batches: Sequence[QueuedBatch]) -> Step:
        assert self._engine is not None, "a step was chosen before there was an engine. This is a bug."
        token_ids = np.concatenate([queued.batch.token_ids for queued in queued_batches])
        lengths = np.concatenate([queued.batch.lengths for queued in queued_batches])
        return self._engine.prepare(token_ids, lengths)


def _report(selection: Selection[QueuedBatch], duration_s: float, idle_s: float) -> StepReport:
    return StepReport(
        tokens=sum(queued.token_count for queued in selection.batches),
        queries=sum(queued.query_count for queued in selection.batches),
        batches=len(selection.batches),
        composition=selection.composition,
        duration_s=duration_s,
        idle_before_s=idle_s,
    )


def _answer(queued_batches: Sequence[QueuedBatch], matrix: Matrix, report: StepReport, start_s: float) -> None:
    first = 0
    for queued in queued_batches:
        rows = matrix[first : first + queued.query_count]
        first += queued.query_count
        queued.deliver(Answer(rows, report, start_s - queued.ready_s))


def _check(matrix: Matrix, selection: Selection[QueuedBatch]) -> None:
    queries = sum(queued.query_count for queued in selection.batches)
    if len(matrix) != queries:
        raise StepFailed(f"the engine gave {len(matrix)} vectors for {queries} queries")


def _deliver(queued_batches: Sequence[QueuedBatch], error: ModelServerError) -> None:
    for queued in queued_batches:
        queued.deliver(error)
