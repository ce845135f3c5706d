"""Follow a request from its source to its reply: this file is the path, in the order of the data.

    receive → admit → dispatch → execute_batch → complete

Every source's requests take the same path. Each leaves by `Completion.complete`, exactly once, or is given up because
its caller or its partition went away.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any

from aggregator.admission.enqueue import enqueue, split_long
from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.model_revision import ModelRevision
from aggregator.admission.models import Models, ServedTask
from aggregator.admission.routing import UNQUEUED, route_all, unroute
from aggregator.errors import Code, ModelUnavailable, unless_cancelled
from aggregator.model_server import ModelServer
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.pipeline.completion import Completion, complete_input
from aggregator.pipeline.demand import Demand, NewDemand
from aggregator.pipeline.execute import BatchExecutor, Runner
from aggregator.replicas.pool import ModelServers
from aggregator.request.request import Failure, Receive, Request, Source, Stage
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.work_item import Query
from aggregator.tokenizers.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)
_EXPIRED = Failure(Code.DEADLINE_EXCEEDED, "the deadline passed before the input reached an engine")
_LATE = Failure(Code.DEADLINE_EXCEEDED, "the deadline cannot be met: the batch would end after it")
_OTHER_REVISION = Failure(
    Code.UNAVAILABLE, "the model revision that began this text is no longer served", retryable=True
)
_UNAVAILABLE = Failure.of(ModelUnavailable("no server of this model is available"))


class Pipeline:
    """The stations of one aggregator, and the order in which requests pass them."""

    def __init__(
        self,
        models: Models,
        pool: ModelServers,
        metrics: Metrics,
        tracing: Tracing,
        *,
        limits: AdmissionLimits | None = None,
        max_unavailable_s: float | None = None,
        runners: Sequence[type[Runner]] = (),
        demand: Sequence[NewDemand] = (),
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.models = models
        self.sources: list[Source] = []
        self._pool = pool
        self._metrics = metrics
        self._tracing = tracing
        self._limits = limits or AdmissionLimits()
        self.demand = next((new(models, clock) for new in demand), Demand())
        self.demand.sources = self.sources
        self._max_unavailable_s = max_unavailable_s
        self._clock = clock
        self._jitter = jitter
        self._tasks: asyncio.TaskGroup | None = None
        self._receiving: list[asyncio.Task[None]] = []
        self._something_changed = asyncio.Event()
        self._completion = Completion(models, self.sources, metrics, clock)
        self._executor = BatchExecutor(
            pool,
            self._limits,
            metrics,
            tracing,
            complete=self._reply,
            changed=self._has_room,
            runners=runners,
            clock=clock,
            jitter=jitter,
        )
        self._long_calls: dict[Request, asyncio.Task[None]] = {}
        self._draining = False

    async def run(self) -> None:
        for served in self.models.tasks:
            served.servers_changed(self._clock())
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(unless_cancelled(self._pool.run(self)), name="pool")
            tasks.create_task(unless_cancelled(self.dispatch()), name="dispatch")
            self._receiving = [
                tasks.create_task(unless_cancelled(self.receive(source, receive)), name=f"receive from {source.name}")
                for source in self.sources
                for receive in source.receivers
            ]

    async def drain(self) -> None:
        """Finish what was received, after every source has stopped; batches go out with reason `drain`."""
        self._draining = True
        self._something_changed.set()
        if self._receiving:
            await asyncio.wait(self._receiving)
        await self._completion.drained()

    # 1. Receive: requests from any source.

    async def receive(self, source: Source, receive: Receive) -> None:
        while requests := await receive():
            self.demand.arrived(source.name, requests)
            self._completion.expect(len(requests))
            await self._admit(requests)

    # 2. Admit: route to a model, count tokens, queue.

    async def _admit(self, requests: Sequence[Request]) -> None:
        """Queue requests of any source; refused ones are completed at once."""
        routed = route_all(requests, self.models, self._clock())
        if routed.expired:
            self._metrics.expired.add(routed.expired)
        refused = routed.refused
        long_records: list[tuple[ModelRevision, ServedTask, Request]] = []
        for model_revision, (served, group) in routed.groups.items():
            portions, long = split_long(group)
            for request in long:
                if not request.source.refusable:
                    long_records.append((model_revision, served, request))
                else:
                    self._long_calls[request] = self._spawn(
                        self._queue_long(model_revision, served, request), "queue long call"
                    )
            for place, portion in enumerate(portions):
                if place:
                    self._admitted(refused)
                    refused = []
                refused += await self._queue(model_revision, served, portion)
        self._admitted(refused)
        for record in long_records:  # one at a time, so that their memory stays bounded
            await self._queue_long(*record)

    def _admitted(self, refused: Sequence[Request]) -> None:
        """Wake the dispatcher, pause sources above their limits, and complete the refused requests meanwhile.

        A reply may wait for its partition's leader: what arrives next does not.
        """
        self._something_changed.set()
        self._completion.pause_sources()
        self._reply(refused)

    async def _queue(
        self, model_revision: ModelRevision, served: ServedTask, requests: Sequence[Request]
    ) -> list[Request]:
        """Queue requests, all of them long or none; returns the requests that are already complete."""
        queue = model_revision.dispatcher.queue
        coalesced = queue.coalesced
        try:
            refused = await enqueue(model_revision, served.model.admission, requests, self._limits, self._clock)
        except Exception:  # noqa: BLE001 - an unexpected error must not end the work of all others
            _LOG.exception("requests could not be queued", extra={"requests": len(requests)})
            refused = _fail_unqueued(requests)
        self._leave_retired(model_revision)  # another revision may have replaced it during the count
        self.demand.counted(served.model, requests)
        if queue.coalesced > coalesced:
            self._metrics.coalesced.add(queue.coalesced - coalesced)
        return refused

    async def _queue_long(self, model_revision: ModelRevision, served: ServedTask, request: Request) -> None:
        """Queue a request whose tokens take long to count; the others do not wait for it."""
        refused = await self._queue(model_revision, served, [request])
        self._long_calls.pop(request, None)
        self._admitted(refused)

    # 3. Dispatch: at every change, and at the times that the dispatcher asks for, send the due batches.

    async def dispatch(self) -> None:
        """Send each batch when its replica takes it; there is no time window."""
        loop = asyncio.get_running_loop()
        while True:
            self._something_changed.clear()
            now_s = self._clock()
            waiting = [served for served in self.models.tasks if served.waits]
            wake_s = min((self._dispatch_task(served, now_s) for served in waiting), default=inf)
            timer = None
            if wake_s < inf:
                timer = loop.call_later(max(0.0, wake_s - self._clock()), self._something_changed.set)
            await self._something_changed.wait()
            if timer is not None:
                timer.cancel()

    def _dispatch_task(self, served: ServedTask, now_s: float) -> float:
        """Send the due batches of one task of a model; returns when to look again (monotonic seconds)."""
        wake_s = self._expire_waiting(served, now_s)
        for model_revision in served.revisions.values():
            due = model_revision.dispatcher.due(now_s, max_items=model_revision.query_capacity, draining=self._draining)
            for batch in due.batches:
                replica, server = batch.replica, model_revision.servers[batch.replica.name]
                self._metrics.batch_sent(
                    replica.name, batch.reason, batch.token_count, len(batch.items), batch.token_budget
                )
                self._spawn(self.execute_batch(model_revision, server, batch), f"batch {batch.batch_id}")
            if due.expired or due.late:
                self._metrics.expired.add(len(due.expired) + len(due.late))
                self._complete_failed(due.expired, _EXPIRED)
                self._complete_failed(due.late, _LATE)
            wake_s = min(wake_s, due.wake_s)
        return wake_s

    def _expire_waiting(self, served: ServedTask, now_s: float) -> float:
        """Fail requests that waited too long for a model without servers; returns the next such time."""
        late = served.pending.expire(now_s)
        self._metrics.expired.add(len(late))
        self._fail(late, _EXPIRED)
        if served.unavailable_since_s is None:
            if served.replays_due_s <= now_s:
                self._readmit(served)
            return min(served.pending.next_deadline_s, served.replays_due_s)
        if self._draining:  # another aggregator may have a server for these
            self._completion.forget(served, lambda request: not request.source.refusable)
            self._fail(served.take_out(lambda _: True), _UNAVAILABLE)
            return inf
        refused, calls_due_s = served.refuse_calls(now_s)
        self._fail(refused, _UNAVAILABLE)
        give_up_s = inf if self._max_unavailable_s is None else served.unavailable_since_s + self._max_unavailable_s
        if give_up_s <= now_s:
            self._fail(served.take_out(lambda _: True), _UNAVAILABLE)
            return inf
        return min(served.pending.next_deadline_s, give_up_s, calls_due_s)

    # 4. Run: one message to one model server, one back.

    async def execute_batch(self, model_revision: ModelRevision, server: ModelServer, batch: Batch) -> None:
        """Send a batch, give each input its result, and complete the requests that miss no other input."""
        with self._tracing.process(
            model_revision.description.model,
            batch.batch_id,
            queries=len(batch.items),
            tokens=batch.token_count,
            attempt=batch.attempt,
            requests=(query.request for item in batch.items for query in item.waiters),
        ):
            finished = await self._executor.execute(model_revision, server, batch)
            self._has_room(model_revision)
            if finished:
                await self._completion.complete(finished)

    def _has_room(self, model_revision: ModelRevision) -> None:
        self._leave_retired(model_revision)
        self._something_changed.set()
        for source in self.sources:
            source.receive_now()

    # 5. Complete: `execute_batch` completes what ran; these complete what never ran.

    def _complete_failed(self, queries: Sequence[Query], failure: Failure) -> None:
        finished: list[Request] = []
        for query in queries:
            complete_input(query, failure, finished)
        self._reply(finished)

    def _reply(self, requests: Sequence[Request]) -> None:
        if requests:
            self._spawn(self._completion.complete(requests), "complete")

    def _fail(self, requests: Sequence[Request], failure: Failure) -> None:
        self._reply([request for request in requests if request.fail(failure)])

    def give_up(self, request: Request) -> asyncio.Future[None] | None:
        """Cancel a request whose caller is gone. Returns its token count that is still running, if any."""
        self._executor.give_up(request)
        self._completion.give_up(request)
        counting = self._long_calls.pop(request, None)
        if counting is not None:
            counting.cancel()
        return counting

    def forget(self, gone: Callable[[Request], bool]) -> None:
        """Drop waiting requests of revoked partitions: the new owner reads their records again."""
        for served in self.models.tasks:
            self._completion.forget(served, gone)

    # Model servers come and go.

    def join(self, server: ModelServer, tokenizer: Tokenizer) -> None:
        self._servers_changed(self.models.join(server, tokenizer))

    def leave(self, server: ModelServer) -> None:
        self._servers_changed(self.models.leave(server))

    def _servers_changed(self, changed: Sequence[ServedTask]) -> None:
        now_s = self._clock()
        for served in changed:
            self._begin_anew(served.servers_changed(now_s))
        for model in {served.name: served.model for served in changed}.values():
            for served in model.tasks.values():
                if not self._draining and now_s < served.refused_from_s < inf:
                    self._spawn(self._refuse(served), f"refuse to {served.task}")
        self._something_changed.set()
        self._completion.pause_sources()

    async def _refuse(self, served: ServedTask) -> None:
        """Refuse waiting requests at the end of the task's grace period, unless a server comes."""
        while self._clock() < served.refused_from_s < inf:  # noqa: ASYNC110 - a clock calls nobody
            await asyncio.sleep(served.refused_from_s - self._clock())
        if served.refused_from_s < inf:
            self._readmit(served)

    def _readmit(self, served: ServedTask) -> None:
        self._begin_anew(served.take_pending())
        self._completion.pause_sources()

    def _leave_retired(self, model_revision: ModelRevision) -> None:
        """Admit requests queued for a retired revision again, to the revision that took over."""
        if model_revision.retired:
            self._begin_anew(model_revision.abandon())

    def _begin_anew(self, requests: Sequence[Request]) -> None:
        """Admit requests again from the start, so that no reply mixes revisions."""
        for request in requests:
            request.release()
            unroute(request)
        self._fail(
            [request for request in requests if not request.kind.restart(request)],
            _OTHER_REVISION,
        )
        again = [request for request in requests if request.remaining]
        if again:
            self._spawn(self._admit(again), "admit again")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        assert self._tasks is not None, "The pipeline was used before it ran. This is a bug."
        return self._tasks.create_task(work, name=name)


def _fail_unqueued(requests: Sequence[Request]) -> list[Request]:
    """Fail the requests that did not get into a queue; returns them."""
    left = [request for request in requests if request.held is None and request.stage is not Stage.GIVEN_UP]
    for request in left:
        request.fail(UNQUEUED)
    return left
