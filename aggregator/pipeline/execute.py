"""Execute batches: send each to its model server, and queue again what fails.

A batch is out until its rows come, or until the runner of its task lets it go. Packing, pacing, retries and isolation
are the same for both.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

from aggregator.admission.limits import AdmissionLimits
from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import (
    BatchFailed,
    Code,
    EngineFailed,
    ModelServerBusy,
    ModelServerLost,
    ModelServerTimedOut,
    server_error,
)
from aggregator.model_server import ModelServer, StepResult, outgoing
from aggregator.observability.costs import REST
from aggregator.observability.metrics import Metrics
from aggregator.observability.tracing import Tracing
from aggregator.pipeline.completion import complete_input, share_out
from aggregator.replicas.pool import ModelServers
from aggregator.request.request import Failure, Outcome, Request
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Task, WorkItem

_LOG = logging.getLogger(__name__)
_POISON = Failure(Code.INTERNAL, "this input, alone in its batch, made the engine fail again and again")


class Runner(ABC):
    """Runs the batches of a task that gives no rows. Used by `wings/generation`."""

    task: ClassVar[Task]

    @abstractmethod
    def __init__(self, executor: BatchExecutor) -> None: ...

    @abstractmethod
    async def run(self, model_revision: ModelRevision, server: ModelServer, batch: Batch) -> StepReport | None:
        """Run a batch until its server takes the next one; None: the server says nothing of its step.

        Raises BatchFailed; the batch then holds the items that are to be sent again.
        """

    @abstractmethod
    def give_up(self, request: Request) -> None:
        """End what runs for a caller that went away."""


@dataclass(eq=False)
class BatchExecutor:
    """The batches of all servers.

    `complete` replies to requests; `changed` is called when a revision's server has room again. `runners`: of tasks
    that give no rows.
    """

    pool: ModelServers
    limits: AdmissionLimits
    metrics: Metrics
    tracing: Tracing
    _: KW_ONLY
    complete: Callable[[Sequence[Request]], None]
    changed: Callable[[ModelRevision], None]
    clock: Callable[[], float]
    jitter: Callable[[], float]
    runners: Sequence[type[Runner]] = ()

    def __post_init__(self) -> None:
        self._runners = {runner.task: runner(self) for runner in self.runners}

    async def execute(self, model_revision: ModelRevision, server: ModelServer, batch: Batch) -> list[Request]:
        """Send a batch, and wait for its rows or its runner; returns the requests that are complete by this."""
        runner = self._runners.get(model_revision.description.task)
        model_revision.in_flight.add(batch)
        try:
            if runner is None:
                result = await server.embed(outgoing(batch), timeout_s=batch.timeout_s)
                report: StepReport | None = result.report
            else:
                result, report = None, await runner.run(model_revision, server, batch)
        except BatchFailed as error:
            return self._failed(model_revision, batch, server, error)
        finally:
            model_revision.in_flight.remove(batch)
        if result is None:
            return self._begun(model_revision, batch, report)
        return self._answered(model_revision, server, batch, result)

    def _begun(self, model_revision: ModelRevision, batch: Batch, report: StepReport | None) -> list[Request]:
        """The runner of a batch has let it go."""
        now_s = self.clock()
        model_revision.dispatcher.done(batch, report, now_s)
        if report is not None:
            self.metrics.observer.batch_done(batch, model_revision.description.task, report, now_s)
        return []

    def _answered(
        self, model_revision: ModelRevision, server: ModelServer, batch: Batch, result: StepResult
    ) -> list[Request]:
        """Share out the rows of a batch, and queue again what failed of it; returns the requests that are complete."""
        now_s, report, description = self.clock(), result.report, model_revision.description
        failed = {place: code for place, code, _ in result.errors}
        for place, code, message in result.errors:
            batch.items[place].refusal = code, message
        items = [batch.items[place] for place in failed]
        poison = model_revision.dispatcher.done(batch, report, now_s, items, self.jitter())
        if failed:
            place, code, message = result.errors[0]
            error = server_error(code, message)
            self.report("a part of a batch failed", server, error, len(items), batch_id=batch.batch_id)
        self._withdraw_untrusted(model_revision)
        if batch.control:
            self.metrics.costs.charge(description.model, description.kind, REST, report.engine_s)
            return []
        whole = len(failed) == len(batch.items)
        if whole:
            self.metrics.observer.batch_failed(batch, description.task, Code(result.errors[0][1]), now_s)
        else:
            self.metrics.batch_done(batch, description.task, report, now_s)
        if description.details.is_vectors:
            code = Code(result.errors[0][1]) if whole else Code.OK
            self.metrics.embedded(description.model, batch, code, now_s)
        self.metrics.costs.computed(description.model, description.kind, batch.items, failed, report.engine_s)
        finished = share_out(model_revision, batch, result, failed, now_s)
        return finished + self._condemn(model_revision, poison, batch)

    def _withdraw_untrusted(self, model_revision: ModelRevision) -> None:
        for name in model_revision.dispatcher.retries.untrusted():
            server = model_revision.servers.get(name)
            if server is not None:
                self.pool.suspect(server)

    def give_up(self, request: Request) -> None:
        """End what runs for a caller that went away."""
        for runner in self._runners.values():
            runner.give_up(request)

    def _failed(
        self, model_revision: ModelRevision, batch: Batch, server: ModelServer, error: BatchFailed
    ) -> list[Request]:
        """Queue its items for a retry (`scheduler.retries`); returns the requests that a proven poison completed."""
        self.report("batch failed", server, error, len(batch.items), batch_id=batch.batch_id)
        self.tracing.failed(error.code)
        dispatcher, now_s = model_revision.dispatcher, self.clock()
        task = model_revision.description.task
        self.metrics.observer.batch_failed(batch, task, error.code, now_s)
        if model_revision.description.details.is_vectors:
            self.metrics.embedded(model_revision.description.model, batch, error.code, now_s)
        if isinstance(error, ModelServerBusy):
            dispatcher.refused(batch, now_s, self.jitter())
            return []
        timed_out = isinstance(error, ModelServerTimedOut)
        poison = dispatcher.failed(batch, now_s, self.jitter(), timed_out=timed_out)
        self._withdraw_untrusted(model_revision)
        return self._condemn(model_revision, poison, batch)

    def _condemn(self, model_revision: ModelRevision, poison: Sequence[WorkItem], batch: Batch) -> list[Request]:
        """Fail the items that are proven to be poison; returns the requests that this completes."""
        return [request for item in poison for request in self._poison(model_revision, item, batch.attempt + 1)]

    def report(self, message: str, server: ModelServer, error: BatchFailed, count: int, **fields: str) -> None:
        fields |= {"replica": server.description.address, "code": error.code.name}
        if not isinstance(error, EngineFailed):  # its message may quote an input
            fields["error"] = str(error)
        _LOG.warning(message, extra=fields)
        self.metrics.retries.add(count, error.code.name)
        if isinstance(error, ModelServerLost):
            self.pool.suspect(server)

    def _poison(self, model_revision: ModelRevision, item: WorkItem, attempts: int) -> list[Request]:
        """Fail an item that makes engines fail, and refuse it from now on; returns the requests that this completes."""
        code, said = item.refusal
        if item.is_refused:
            return completed(item, Failure(Code(code), said, attempts=attempts))
        request: Request = item.waiters[0].request
        for token_ids in request.kind.poison(request):
            model_revision.dispatcher.retries.quarantine(token_ids, self.clock())
        message = f"{_POISON.message}: {said}" if said else _POISON.message
        return completed(item, replace(_POISON, message=message, attempts=attempts))


def completed(item: WorkItem, outcome: Outcome) -> list[Request]:
    """Give every waiting query of an item the same outcome; returns the requests that are complete by this."""
    finished: list[Request] = []
    for query in item.waiters:
        if not query.done:
            complete_input(query, outcome, finished)
    return finished
