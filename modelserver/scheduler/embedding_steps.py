"""The steps of a model that embeds: execute the next one, deliver to each batch its vectors, isolate failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Thread

import numpy as np
import numpy.typing as npt

from modelserver.engines.engine import Engine, EngineFacts, IdArray, Matrix, Spans, Step
from modelserver.errors import EngineBroken, NotServing, StepFailed
from modelserver.scheduler.queued_batch import Answer, Composition, Outcome, QueuedBatch, StepReport, Unclaimed
from modelserver.scheduler.step_queue import NextStep, QueueBounds, StepQueue
from modelserver.service.batch import broken_rows

_log = logging.getLogger(__name__)


class EmbeddingSteps:
    """Takes steps from `queue`, which a second thread prepares while another step runs."""

    def __init__(
        self,
        queue: StepQueue,
        bounds: Callable[[EngineFacts], QueueBounds],
        on_step: Callable[[StepReport], None],
        on_failed_step: Callable[[Composition, float], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        unclaimed: Unclaimed | None = None,
    ) -> None:
        self._queue = queue
        self._bounds = bounds
        self._on_step = on_step
        self._on_failed_step = on_failed_step
        self._clock = clock
        self._unclaimed = unclaimed or Unclaimed()
        self._engine: Engine | None = None
        self._next: NextStep | None = None
        self._idle_since_s = 0.0
        self._staging: Thread | None = None
        self.failures = 0

    def open(self, engine: Engine) -> None:
        self._engine = engine
        self._idle_since_s = self._clock()
        self.failures = 0
        self._queue.open(self._bounds(engine.facts))
        if self._staging is None:
            self._staging = Thread(target=self._stage, name="staging", daemon=True)
            self._staging.start()

    def wait(self, engine: Engine) -> bool:
        del engine
        self._next = self._queue.take()
        return self._next is not None

    def execute(self, engine: Engine) -> None:
        assert self._next is not None, "A step is executed that was not waited for. This is a bug."
        batches, composition = self._next.selection.batches, self._next.selection.composition
        start_s = self._clock()
        try:
            step = self._next.step or self._prepare(batches)
            start_s = self._clock()
            idle_s = start_s - self._idle_since_s
            matrix = step.execute()
            _check(matrix, batches)
        except Exception as error:  # noqa: BLE001 - engines raise anything; what follows depends on how it recovers
            self._idle_since_s = self._clock()
            self._fail(engine, batches, composition, error, self._idle_since_s - start_s)
            return
        self._idle_since_s = self._clock()
        broken = broken_rows(matrix, zeros=engine.facts.gives_zeros)
        self._count(batches, composition, broken)
        report = StepReport(
            tokens=sum(queued.token_count for queued in batches),
            queries=sum(queued.query_count for queued in batches),
            batches=len(batches),
            composition=composition,
            duration_s=self._idle_since_s - start_s,
            idle_before_s=idle_s,
        )
        self._on_step(report)
        _answer(batches, matrix, report, start_s, broken)

    def refuse(self, reason: str) -> None:
        self._next = None
        _deliver(self._queue.drain(), NotServing(reason))

    def _count(
        self, batches: Sequence[QueuedBatch], composition: Composition, broken: npt.NDArray[np.bool_] | None
    ) -> None:
        """Count a step without any usable row as failed. One with some neither counts nor ends the count.

        A row alone says little of the engine: its input may be to blame, and the sender tries it elsewhere.
        """
        if broken is None:
            self.failures = 0
            return
        rows = int(broken.sum())
        _log.warning("rows of a step are broken", extra={"batches": len(batches), "rows": rows, "of": broken.size})
        if rows == broken.size:
            self.failures += 1
            self._on_failed_step(composition, 0.0)

    def _fail(
        self,
        engine: Engine,
        batches: Sequence[QueuedBatch],
        composition: Composition,
        error: Exception,
        duration_s: float,
    ) -> None:
        """Queue a merged step's batches again, each isolated; report a single one's failure. Raises EngineBroken."""
        self.failures += 1
        self._on_failed_step(composition, duration_s)
        self._unclaimed.add(duration_s)
        merged = composition is Composition.MERGED
        _log.warning("a step failed", extra={"batches": len(batches), "error": f"{type(error).__name__}: {error}"})
        try:
            if isinstance(error, EngineBroken):
                raise error
            engine.recover()
        except EngineBroken as broken:
            # The cause in a merged step is unknown: UNAVAILABLE, and each batch is tried again by itself.
            _deliver(batches, broken if merged else StepFailed(f"the engine broke: {error}"))
            raise
        if merged:
            self._queue.put_back_isolated(batches, self._clock())
        else:
            _deliver(batches, StepFailed(f"the engine failed: {type(error).__name__}: {error}"))

    def _stage(self) -> None:
        while self._queue.stage(self._prepare):
            pass

    def _prepare(self, batches: Sequence[QueuedBatch]) -> Step:
        assert self._engine is not None, "A step was chosen before there was an engine. This is a bug."
        if len(batches) == 1:
            batch = batches[0].batch
            return self._engine.prepare(batch.token_ids, batch.lengths, batch.second_segments, batch.spans)
        token_ids = np.concatenate([queued.batch.token_ids for queued in batches])
        lengths = np.concatenate([queued.batch.lengths for queued in batches])
        return self._engine.prepare(token_ids, lengths, _second_segments(batches), _spans(batches))


def _second_segments(batches: Sequence[QueuedBatch]) -> IdArray | None:
    """Where the tokens of type 1 begin in each query: behind its last one in a batch that has none."""
    if all(queued.batch.second_segments is None for queued in batches):
        return None
    parts = (
        queued.batch.lengths if queued.batch.second_segments is None else queued.batch.second_segments
        for queued in batches
    )
    return np.concatenate(list(parts))


def _spans(batches: Sequence[QueuedBatch]) -> Spans | None:
    found = [queued.batch.spans for queued in batches]
    if not any(found):
        return None
    counts = [
        np.zeros(queued.query_count, np.int32) if spans is None else spans.counts
        for queued, spans in zip(batches, found, strict=True)
    ]
    return Spans(np.concatenate(counts), np.concatenate([spans.bounds for spans in found if spans is not None]))


def _answer(
    batches: Sequence[QueuedBatch],
    matrix: Matrix,
    report: StepReport,
    start_s: float,
    broken: npt.NDArray[np.bool_] | None,
) -> None:
    first = 0
    for queued in batches:
        rows = slice(first, first + queued.batch.row_count)
        first = rows.stop
        engine_s = report.duration_s * queued.token_count / report.tokens
        own = broken[rows] if broken is not None and broken[rows].any() else None
        queued.deliver(Answer(matrix[rows], report, start_s - queued.ready_s, engine_s, own))


def _check(matrix: Matrix, batches: Sequence[QueuedBatch]) -> None:
    rows = sum(queued.batch.row_count for queued in batches)
    if len(matrix) != rows:
        raise StepFailed(f"the engine gave {len(matrix)} vectors, and {rows} were asked for")


def _deliver(batches: Sequence[QueuedBatch], outcome: Outcome) -> None:
    for queued in batches:
        queued.deliver(outcome)
