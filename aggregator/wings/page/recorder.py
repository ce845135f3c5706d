"""Keep what happened lately, for the page, and only while somebody looks at it.

Nobody looks: a call here compares two numbers, and returns.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from aggregator.errors import Code
from aggregator.observability.observer import Observer
from aggregator.request.request import Request
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Task

KEPT_S = 60.0
"""Recording goes on for this time after the last look: a page that is loaded again shows what it showed before."""
MOST_BATCHES = 512
"""Batches that are kept of each model server."""
MOST_REPLICAS = 256  # pods come and go under new addresses: bounds the memory
_MOST_NEW = 8192  # batches between two looks of the page, half a second apart
LOOKS_S = 2.0
"""Latencies are kept while somebody looks at least this often."""
_SAMPLED = 8
"""Queries of a batch whose waiting time is read."""


class BatchRecord(NamedTuple):
    """One batch, as the page draws it. Times are monotonic seconds.

    `duration_s` is its engine step's, or from packing to its failure. `tokens_in_step` includes merged batches of other
    aggregators, and prompts. `code`: why it failed, or empty.
    """

    replica: str
    task: str
    end_s: float
    duration_s: float
    tokens: int
    budget: int
    queries: int
    reason: str
    staged: bool
    tokens_in_step: int
    decoding: int
    code: str


class Waits(NamedTuple):
    """Where the time of one batch's queries of a source went, in seconds."""

    queued_s: float
    batched_s: float
    inference_s: float


class Recent(NamedTuple):
    """Latencies of answers and samples of waits by source, times to the first token; the number of answered queries."""

    latencies_s: Mapping[str, npt.NDArray[np.float64]]
    waits: Mapping[str, Sequence[Waits]]
    first_tokens_s: Sequence[float]
    answered_queries: int


class Recorder(Observer):
    """The events of the last minute. Used on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = self._looks_until_s = -inf
        self._batches: dict[str, deque[BatchRecord]] = {}
        self._new: deque[BatchRecord] = deque(maxlen=_MOST_NEW)
        self._latencies: dict[str, list[npt.NDArray[np.float64]]] = {}
        self._waits: dict[str, list[Waits]] = {}
        self._first_tokens: list[float] = []
        self._answered_queries = 0

    def look(self) -> None:
        """Somebody looks: record for a minute more. Older events are forgotten."""
        now_s = self._clock()
        if now_s >= self._until_s:
            self._batches.clear()
            self._new.clear()
        if now_s >= self._looks_until_s:
            self.take()
        self._until_s, self._looks_until_s = now_s + KEPT_S, now_s + LOOKS_S

    @override
    def batch_done(self, batch: Batch, task: Task, report: StepReport, now_s: float) -> None:
        if now_s >= self._until_s:
            return
        self._add(batch, task, report, now_s, "")
        if now_s >= self._looks_until_s:
            return
        inference_s = report.step_duration_s
        batched_s = max(0.0, now_s - batch.packed_s - inference_s)
        for item in batch.items[:: max(1, len(batch.items) // _SAMPLED)]:
            query = item.waiters[0]
            request: Request = query.request
            waits = Waits(batch.packed_s - query.enqueued_s, batched_s, inference_s)
            self._waits.setdefault(request.source.name, []).append(waits)
            first_token_s = request.kind.first_token_s(request)
            if batch.packed_s <= first_token_s < inf:
                self._first_tokens.append(first_token_s - request.received_s)

    @override
    def batch_failed(self, batch: Batch, task: Task, code: Code, now_s: float) -> None:
        if now_s >= self._until_s:
            return
        report = StepReport(batch.token_count, max(0.0, now_s - batch.packed_s), 0, 0.0, 0.0)
        self._add(batch, task, report, now_s, code.name)

    @override
    def answered(self, source: str, latencies_s: Sequence[float], queries: int) -> None:
        if self._clock() < self._looks_until_s:
            self._answered_queries += queries
            self._latencies.setdefault(source, []).append(np.array(latencies_s, np.float64))

    def take_new(self) -> list[BatchRecord]:
        new = list(self._new)
        self._new.clear()
        return new

    def kept(self) -> list[BatchRecord]:
        """The batches of the last minute, the latest `MOST_BATCHES` of each model server."""
        oldest_s = self._clock() - KEPT_S
        return [record for lane in self._batches.values() for record in lane if record.end_s >= oldest_s]

    def take(self) -> Recent:
        """The events since the last call."""
        latencies = {source: np.concatenate(parts) for source, parts in self._latencies.items()}
        recent = Recent(latencies, self._waits, self._first_tokens, self._answered_queries)
        self._latencies, self._waits, self._first_tokens, self._answered_queries = {}, {}, [], 0
        return recent

    def _add(self, batch: Batch, task: Task, report: StepReport, now_s: float, code: str) -> None:
        replica = batch.replica.name
        record = BatchRecord(
            replica,
            task,
            now_s,
            report.step_duration_s,
            batch.token_count,
            batch.token_budget,
            len(batch.items),
            batch.reason,
            report.staged_s > 0.0,
            report.step_tokens,
            report.decoding_sequences,
            code,
        )
        lane = self._batches.get(replica)
        if lane is None:
            if len(self._batches) >= MOST_REPLICAS:  # of pods that have long left
                del self._batches[next(iter(self._batches))]
            lane = self._batches[replica] = deque(maxlen=MOST_BATCHES)
        lane.append(record)
        self._new.append(record)
