"""Complete requests: reply, release what they hold once the reply is delivered, and count the open ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from aggregator.admission.held import release
from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Model, Models
from aggregator.errors import Code
from aggregator.observability.metrics import Metrics
from aggregator.replicas.engine import StepResult
from aggregator.replicas.results import CompletedBatch, Vector
from aggregator.request import Failure, Outcome, Request, request_of
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.work_item import Query
from aggregator.sources.source import Source

_GONE = Failure(Code.CANCELLED, "the caller went away")
_LEFT = Failure(Code.CANCELLED, "the record is left to whoever reads it next")


class Completion:
    """Completes every request that was received, and releases its tokens, its offset and paused sources."""

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
        """Wait until no request is open, and everything is written."""
        await self._none_open.wait()
        for source in self._sources:
            await source.delivered()

    async def complete(self, requests: Sequence[Request]) -> None:
        """Reply to requests whose every input has an outcome; to gRPC callers first, who need no broker."""
        for source in sorted(self._sources, key=lambda source: source.replayed):
            mine = [request for request in requests if request.source is source]
            if mine:
                async for delivered in source.reply(mine):
                    self._release(delivered)

    def give_up(self, request: Request) -> None:
        """A caller went away: remove its inputs from the queue; results of those that run are dropped."""
        if request.remaining:
            request.given_up = True
            for model in self._models:
                model.pending.discard(request)
            request.fail(_GONE)
            request.inputs = ()  # whoever still has the request at hand need not keep its texts
            if request.held is not None:
                for query in request.queries:
                    request.held.queue.cancel(query)
            self._release([request])

    def forget(self, model: Model, gone: Callable[[Request], bool]) -> None:
        """Drop waiting requests of a model without a reply: the next consumer of their records processes them."""
        forgotten = model.take_out(gone)
        for request in forgotten:
            request.fail(_LEFT)
        self._release(forgotten)

    def pause_sources(self) -> None:
        """Pause the topics of models that can take no more of their class, and no others."""
        find, full = self._models.find, {model.name: model.full() for model in self._models}
        for source in self._sources:
            source.pause(
                lambda name: not find(name).available, lambda name, priority: priority in full[find(name).name]
            )

    def _release(self, requests: Sequence[Request]) -> None:
        """Release what completed requests hold, and count them."""
        now_s = self._clock()
        for source in self._sources:
            mine = [request for request in requests if request.source is source]
            if mine:
                failed = Counter(request.code for request in mine if request.failed)
                codes = {Code.OK: len(mine) - failed.total(), **failed}
                self._metrics.answered(source.name, codes, [now_s - request.received_s for request in mine])
        for request in requests:
            account(request, now_s)
            release(request)
        self.expect(-len(requests))
        self.pause_sources()
        self._promote_stuck()

    def _promote_stuck(self) -> None:
        """Promote the inputs that hold a partition's committed offset back."""
        for source in self._sources:
            is_stuck = source.newly_stuck()
            if is_stuck is None:
                continue
            for model in self._models:
                for queue, query in model.waiting():
                    if request_of(query).source is source and is_stuck(request_of(query)):
                        queue.promote(query)


def account(request: Request, now_s: float) -> None:
    """Tell the SLO tracker of its model, if any, how long it took, and how much of that was overhead."""
    if request.held is None or request.held.slo is None:
        return
    batches = [outcome.batch for outcome in request.outcomes if isinstance(outcome, Vector)]
    if batches:
        last = max(batches, key=lambda batch: batch.done_s)
        overhead_s = request.held.queued_s - request.received_s + last.carried_s + now_s - last.done_s
        request.held.slo.answered(now_s - request.received_s, overhead_s)


def share_out(model_revision: ModelRevision, batch: Batch, result: StepResult, now_s: float) -> list[Request]:
    """Give every waiting query its row, or its error; returns the requests that are complete by this."""
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
    )
    failures = {row: Failure(Code(code), message) for row, code, message in result.errors}
    packed_s = batch.packed_s
    finished: list[Request] = []
    for row, item in enumerate(batch.items):
        failure = failures.get(row) if failures else None
        for query in item.waiters:
            if query.item is item:
                outcome = failure or Vector(completed, row, item.token_count, packed_s - query.enqueued_s)
                complete_input(query, outcome, finished)
    return finished


def complete_input(query: Query, outcome: Outcome, finished: list[Request]) -> None:
    """Give one query its outcome, unless its request was given up; adds its request if that is complete."""
    query.item = None
    request = request_of(query)
    if request.remaining and request.complete_input(query.index, outcome):
        finished.append(request)
