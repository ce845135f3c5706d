"""Hold the batches that wait for the engine, stage the next step while one runs, and hand it over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Lock

from modelserver.engines.engine import Step
from modelserver.errors import NotServing, QueueFull
from modelserver.scheduler.queued_batch import (
    MergeLimits,
    QueuedBatch,
    RecentPriorities,
    Selection,
    in_turn,
    select,
)


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The size of one step, and of the queue before it, in tokens."""

    limits: MergeLimits
    max_queued_tokens: int


@dataclass(frozen=True, slots=True)
class NextStep:
    """The batches of the next step; `step` is None when it is still to be prepared."""

    selection: Selection[QueuedBatch]
    step: Step | None


class StepQueue:
    """Between the event loop (`put`, `withdraw`), the engine's thread (`take`) and the staging thread (`stage`).

    It accepts batches while it is open. The batches that wait are bounded in tokens. A batch whose caller has given up
    never reaches the engine. An engine that also generates takes single batches (`poll`), and is woken for them. The
    order is by class, whoever sent the batches, with a turn for aged ones (`in_turn`).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._bounds: QueueBounds | None = None
        self._clock = clock
        self._lock = Lock()
        self._may_run = Condition(self._lock)
        self._may_stage = Condition(self._lock)
        self._waiting: list[QueuedBatch] = []
        self._queued_tokens = 0
        self._after_aged = False
        self._recent = RecentPriorities()
        self._staged: NextStep | None = None
        self._staging = False
        self._running = False
        self._closed = False
        self._wake: Callable[[], None] | None = None

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait; those of the running step do not count."""
        return self._queued_tokens

    def recent_priorities(self) -> list[int]:
        """The numbers of the classes of the batches that came lately, the most urgent first."""
        return self._recent.at(self._clock())

    def open(self, bounds: QueueBounds, wake: Callable[[], None] | None = None) -> None:
        """Accept batches from now on; `wake` is called, on any thread, when one waits."""
        with self._lock:
            self._bounds = bounds
            self._wake = wake

    def put(self, queued: QueuedBatch) -> None:
        """Let a batch wait. Raises QueueFull above the bound (never for an empty queue) and NotServing unless open."""
        with self._lock:
            if self._closed or self._bounds is None:
                raise NotServing("the server is stopping" if self._closed else "the engine is not ready")
            if self._waiting and self._queued_tokens + queued.token_count > self._bounds.max_queued_tokens:
                raise QueueFull(f"{self._queued_tokens} tokens wait already")
            self._waiting.append(queued)
            self._queued_tokens += queued.token_count
            self._recent.came(queued.priority, queued.ready_s)
            self._notify()

    def put_back_isolated(self, queued_batches: Sequence[QueuedBatch], now_s: float) -> None:
        """Let the batches of a failed merged step run next, each by itself."""
        with self._lock:
            for queued in queued_batches:
                queued.failed_merged = True
                queued.ready_s = now_s
            self._waiting[:0] = queued_batches
            self._staged = None
            self._count()

    def withdraw(self, queued: QueuedBatch) -> None:
        """Remove a batch whose caller has given up; without effect once its step runs."""
        with self._lock:
            queued.withdrawn = True
            self._drop_unwanted()

    def drain(self) -> tuple[QueuedBatch, ...]:
        """Accept no batches until opened again, and return the waiting ones, to be refused. Engine's thread."""
        with self._lock:
            self._bounds = None
            self._running = False
            while self._staging:
                self._may_run.wait()
            queued_batches = tuple(self._waiting)
            self._waiting.clear()
            self._staged = None
            self._count()
            return queued_batches

    def close(self) -> None:
        """Accept no further batch; waiting ones still run, then `take` and `stage` end."""
        with self._lock:
            self._closed = True
            self._may_run.notify()
            self._may_stage.notify()

    def take(self) -> NextStep | None:
        """Wait for the next step and take it; None once the queue is closed and empty. Engine's thread."""
        with self._lock:
            self._running = False
            while True:
                self._drop_unwanted()
                step = self._next()
                if step is not None:
                    self._running = True
                    self._after_aged = step.selection.aged
                    self._remove(step.selection.batches)
                    return step
                if self._closed and not self._waiting:
                    return None
                self._may_run.wait()

    def poll(self, may_run: Callable[[QueuedBatch], bool]) -> QueuedBatch | None:
        """Take the batch in turn; None if none waits, or if this one may not run now."""
        with self._lock:
            self._drop_unwanted()
            ordered, aged = in_turn(self._waiting, self._clock(), after_aged=self._after_aged)
            if not ordered or not may_run(head := ordered[0]):
                return None
            self._after_aged = aged
            self._remove((head,))
            return head

    def stage(self, prepare: Callable[[Sequence[QueuedBatch]], Step]) -> bool:
        """While a step runs, prepare the next one as soon as something waits; False once closed. Staging thread."""
        with self._lock:
            selection = self._to_stage()
            while selection is None:
                if self._closed:
                    return False
                self._may_stage.wait()
                selection = self._to_stage()
            self._staging = True
        step: Step | None = None
        with suppress(Exception):  # the engine's thread prepares it again, and reports what is raised
            step = prepare(selection.batches)
        with self._lock:
            self._staging = False
            self._staged = NextStep(selection, step)
            self._may_run.notify()
        return True

    def _next(self) -> NextStep | None:
        """The staged step if it still stands, else the batches of a new one; None to wait."""
        if self._staging:
            return None
        staged, self._staged = self._staged, None
        selection = self._select()
        if staged is not None and selection is not None and self._stands(staged.selection, selection):
            return staged
        return None if selection is None else NextStep(selection, None)

    def _stands(self, staged: Selection[QueuedBatch], now: Selection[QueuedBatch]) -> bool:
        """Whether what was staged can run: all of it still waits, and the same batch is in turn."""
        return staged.batches[0] is now.batches[0] and all(queued in self._waiting for queued in staged.batches)

    def _to_stage(self) -> Selection[QueuedBatch] | None:
        if not self._running:
            return None
        self._drop_unwanted()
        selection = self._select()
        if selection is None or (self._staged is not None and self._staged.selection == selection):
            return None
        return selection

    def _select(self) -> Selection[QueuedBatch] | None:
        if self._bounds is None:
            return None
        return select(self._waiting, self._bounds.limits, self._clock(), after_aged=self._after_aged)

    def _remove(self, queued_batches: Sequence[QueuedBatch]) -> None:
        taken = set(map(id, queued_batches))
        self._waiting = [queued for queued in self._waiting if id(queued) not in taken]
        self._count()

    def _drop_unwanted(self) -> None:
        now_s = self._clock()
        if not all(queued.wanted(now_s) for queued in self._waiting):
            self._waiting = [queued for queued in self._waiting if queued.wanted(now_s)]
            self._count()

    def _count(self) -> None:
        self._queued_tokens = sum(queued.token_count for queued in self._waiting)
        self._notify()

    def _notify(self) -> None:
        """Wake the thread that has work: while a step runs, the staging thread."""
        if self._wake is not None:
            if self._waiting:
                self._wake()
        elif not self._running:
            self._may_run.notify()
        elif self._waiting:
            self._may_stage.notify()
