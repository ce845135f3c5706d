"""Complete requests: reply, release their tokens once the reply is delivered, and count the open requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Models, ServedTask
from aggregator.errors import Code
from aggregator.model_server import StepResult
from aggregator.observability.metrics import Metrics
from aggregator.request.request import Failure, Outcome, Request, Source, Stage
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.work_item import Query

_GONE = Failure(Code.CANCELLED, "the caller went away")
_LEFT = Failure(Code.CANCELLED, "the record is left to its next consumer")


class Completion:
    """Completes every request that was received, and releases its tokens and paused sources."""

    def __init__(self, models: Models, sources: Sequence[Source], metrics: Metrics, clock: Callable[[], float]) -> None:
        self._models = models
        self._sources = sources
        self._metrics = metrics
        self._clock = clock
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()

    def expect(self, count: int) -> None:
        """This number of requests was received; each is to be completed, given up or forgotten, once."""
        self._open += count
        if self._open:
            self._none_open.clear()
        else:
            self._none_open.set()

    async def drained(self) -> None:
        await self._none_open.wait()

    async def complete(self, requests: Sequence[Request]) -> None:
        """Reply to requests whose every input has an outcome; to callers first, who need no broker.

        The requests of one broker do not wait for another's.
        """
        by_source = _by_source(requests)
        if len(by_source) == 1:
            await self._complete(*next(iter(by_source.items())))
            return
        async with asyncio.TaskGroup() as tasks:
            for source in sorted(by_source, key=lambda source: not source.refusable):
                tasks.create_task(self._complete(source, by_source[source]), name=f"complete {source.name}")

    async def _complete(self, source: Source, requests: Sequence[Request]) -> None:
        async for delivered in source.reply(requests):
            self._release(delivered)

    def give_up(self, request: Request) -> None:
        """A caller went away: remove its inputs from the queue; results of those that run are dropped."""
        if request.remaining:
            request.stage = Stage.GIVEN_UP
            for served in self._models.tasks:
                served.pending.discard(request)
            request.fail(_GONE)
            request.inputs = ()  # its texts are freed, even if a task still holds the request
            if request.held is not None:
                request.held.queue.cancel(request.queries)
            self._release([request])

    def forget(self, served: ServedTask, gone: Callable[[Request], bool]) -> None:
        """Drop waiting requests of a task without a reply: the next consumer of their records processes them."""
        forgotten = served.take_out(gone)
        for request in forgotten:
            request.fail(_LEFT)
        self._release(forgotten)

    def pause_sources(self) -> None:
        """Pause the sources that are not refused at a limit, by the state of the models; the only place that does."""
        pausable = [source for source in self._sources if not source.refusable]
        if not pausable:
            return
        now_s, find = self._clock(), self._models.find
        full = {model.name: model.full() for model in self._models}
        for source in pausable:
            source.pause(
                lambda name, task: not (find(name, task).available or find(name, task).refused_from_s <= now_s),
                lambda name, priority: priority in full[find(name).name],
            )

    def _release(self, requests: Sequence[Request]) -> None:
        now_s = self._clock()
        for source, mine in _by_source(requests).items():
            failed = Counter(request.code for request in mine if request.failed)
            codes = {Code.OK: len(mine) - failed.total(), **failed}
            queries = sum([len(request.outcomes) for request in mine])
            self._metrics.answered(source.name, codes, [now_s - request.received_s for request in mine], queries)
        for request in requests:
            account(request, now_s)
            request.release()
        self.expect(-len(requests))
        self.pause_sources()


def _by_source(requests: Sequence[Request]) -> dict[Source, list[Request]]:
    groups: dict[Source, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.source, []).append(request)
    return groups


def account(request: Request, now_s: float) -> None:
    """Report to its model's SLO tracker, if any, its latency and the overhead in that."""
    if request.held is None or request.held.slo is None:
        return
    batches = [outcome.batch for outcome in request.outcomes if isinstance(outcome, Vector)]
    if batches:
        last = max(batches, key=lambda batch: batch.done_s)
        overhead_s = request.held.queued_s - request.received_s + last.carried_s + now_s - last.done_s
        request.held.slo.answered(now_s - request.received_s, overhead_s)


def share_out(
    model_revision: ModelRevision, batch: Batch, result: StepResult, failed: Collection[int], now_s: float
) -> list[Request]:
    """Give every waiting query its rows, but for the items at the places that `failed`; returns complete requests."""
    description, report = model_revision.description, result.report
    batched_s = max(0.0, now_s - batch.packed_s - report.step_duration_s)
    completed = CompletedBatch(
        batch_id=batch.batch_id,
        model=description.model,
        model_revision=description.model_revision,
        attempt=batch.attempt,
        matrix=result.matrix,
        batched_s=batched_s,
        inference_s=report.step_duration_s,
        carried_s=max(0.0, batched_s - report.staged_s),
        done_s=now_s,
        labels=description.labels,
    )
    model_revision.known.keep(batch.items, failed, result.matrix)
    packed_s = batch.packed_s
    finished: list[Request] = []
    row = 0
    for index, item in enumerate(batch.items):
        chunks = item.chunks
        for query in () if index in failed else item.waiters:
            if query.item is item:
                outcome = Vector(completed, row, item.token_count, packed_s - query.enqueued_s, chunks)
                complete_input(query, outcome, finished)
        row += max(1, chunks)
    return finished


def complete_input(query: Query, outcome: Outcome, finished: list[Request]) -> None:
    """Give one query its outcome, unless its request was given up; adds its request if that is complete."""
    query.item = None
    request: Request = query.request
    if request.remaining and request.complete_input(query.index, outcome):
        finished.append(request)
