"""Execute batches: send each to its model server, and queue again what fails.

A batch of embeddings is out until its vectors come, a batch of prompts until each has its first token; then its
sequences run by themselves. A batch of suspects is out until each sequence is cleared. Packing, pacing, retries and
isolation are the same for both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

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
from aggregator.pipeline.generation import RunningSequence, first_tokens
from aggregator.replicas.pool import ModelServers
from aggregator.request.request import Failure, Outcome, Request
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Task, WorkItem

_LOG = logging.getLogger(__name__)
_REFUSALS = frozenset((Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE))
"""With these a server says that the input is wrong; that is believed once it is proven as any other failure is."""
_POISON = Failure(Code.INTERNAL, "this input, alone in its batch, made the engine fail again and again")


@dataclass(eq=False)
class BatchExecutor:
    """The batches and running sequences of all servers.

    `complete` replies to requests; `changed` is called when a sequence left a server of a revision.
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
    _running: dict[Request, RunningSequence] = field(default_factory=dict)
    _to_resume: list[tuple[RunningSequence, BatchFailed]] = field(default_factory=list)

    async def execute(self, model_revision: ModelRevision, server: ModelServer, batch: Batch) -> list[Request]:
        """Send a batch, and wait for its vectors or first tokens; returns the requests that are complete by this."""
        model_revision.in_flight.add(batch)
        try:
            if model_revision.description.generation is None:
                result = await server.embed(outgoing(batch), timeout_s=batch.timeout_s)
                report = result.report
            elif batch.control:
                result, report = None, None
                await server.probe(batch.items[0].token_ids, timeout_s=batch.timeout_s)
            else:
                result, report = None, await self._begin(model_revision, server, batch)
        except BatchFailed as error:
            return self._failed(model_revision, batch, server, error)
        finally:
            model_revision.in_flight.remove(batch)
        if result is None or report is None:
            return self._begun(model_revision, batch, report)
        return self._answered(model_revision, server, batch, result)

    def _begun(self, model_revision: ModelRevision, batch: Batch, report: StepReport | None) -> list[Request]:
        """The sequences of a batch have begun, or a control has its token (`report` None)."""
        now_s = self.clock()
        model_revision.dispatcher.done(batch, report, now_s)
        if report is not None:
            self.metrics.observer.batch_done(batch, Task.GENERATE, report, now_s)
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
            self._report("a part of a batch failed", server, error, len(items), batch_id=batch.batch_id)
        self._withdraw_untrusted(model_revision)
        if batch.control:
            self.metrics.costs.charge(description.model, description.kind, REST, report.engine_s)
            return []
        whole = len(failed) == len(batch.items)
        if whole:
            self.metrics.observer.batch_failed(batch, description.task, Code(result.errors[0][1]), now_s)
        else:
            self.metrics.batch_done(batch, description.task, report, now_s)
        if description.task is Task.EMBED:
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
        """Abort the sequence of a caller that went away, if one runs."""
        sequence = self._running.pop(request, None)
        if sequence is not None:
            sequence.abort()
            self._count_tokens(sequence)
            self.tracing.generated(request, sequence.generation, self.clock(), Code.CANCELLED)
            self.changed(sequence.model_revision)

    async def _begin(self, model_revision: ModelRevision, server: ModelServer, batch: Batch) -> StepReport:
        """Start or resume the sequences of a batch, and wait for their first tokens. Raises BatchFailed."""
        sequences: list[RunningSequence] = []
        for item in batch.items:
            if item.alive:
                sequence = RunningSequence(
                    model_revision,
                    server,
                    batch,
                    item,
                    account=self.metrics.costs.account(item.waiters[0].tenant),
                    on_end=self._ended,
                    on_lost=self._lost,
                    clock=self.clock,
                )
                self._running[sequence.request] = sequence
                sequences.append(sequence)
        for sequence in sequences:
            sequence.start()
        return await first_tokens(sequences, server, batch, self.clock)

    def _ended(self, sequence: RunningSequence, failure: Failure | None) -> None:
        request, generation = sequence.request, sequence.generation
        del self._running[request]
        now_s = self.clock()
        self.limits.charge(request, len(generation.token_ids), now_s)
        sequence.model_revision.finished_generation(generation, now_s - generation.started_s)
        self._count_tokens(sequence)
        self.metrics.generated(request.model, generation, now_s - request.received_s, request.received_s, failure)
        self.tracing.generated(request, generation, now_s, failure.code if failure is not None else None)
        self.complete(_completed(sequence.item, failure or generation))
        self.changed(sequence.model_revision)

    def _count_tokens(self, sequence: RunningSequence) -> None:
        generation = sequence.generation
        tokens = generation.prompt_tokens + len(generation.token_ids)
        self.metrics.costs.generated(sequence.model_revision.description.model, sequence.request.tenant, tokens)

    def _lost(self, sequence: RunningSequence, error: BatchFailed) -> None:
        """A sequence is to resume on another server: with its batch, or with others that had begun."""
        del self._running[sequence.request]
        if sequence.lost is None:
            if not self._to_resume:
                asyncio.get_running_loop().call_soon(self._resume)
            self._to_resume.append((sequence, error))

    def _resume(self) -> None:
        """Queue again the sequences that were lost since the last turn of the event loop."""
        to_resume, self._to_resume = self._to_resume, []
        now_s = self.clock()
        groups: dict[tuple[ModelRevision, ModelServer, bool], list[tuple[RunningSequence, BatchFailed]]] = {}
        for sequence, error in to_resume:
            key = sequence.model_revision, sequence.server, sequence.generation.failures > 1
            groups.setdefault(key, []).append((sequence, error))
        for (model_revision, server, again), lost in groups.items():
            self._report("generations resume on other servers", server, lost[0][1], len(lost))
            items = [sequence.item for sequence, _ in lost]
            model_revision.dispatcher.lost(items, server.description.address, now_s, self.jitter(), again=again)
            self.changed(model_revision)

    def _failed(
        self, model_revision: ModelRevision, batch: Batch, server: ModelServer, error: BatchFailed
    ) -> list[Request]:
        """Queue its items for a retry (`scheduler.retries`); returns the requests that a proven poison completed."""
        self._report("batch failed", server, error, len(batch.items), batch_id=batch.batch_id)
        self.tracing.failed(error.code)
        dispatcher, now_s = model_revision.dispatcher, self.clock()
        task = model_revision.description.task
        self.metrics.observer.batch_failed(batch, task, error.code, now_s)
        if task is Task.EMBED:
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

    def _report(self, message: str, server: ModelServer, error: BatchFailed, count: int, **fields: str) -> None:
        fields |= {"replica": server.description.address, "code": error.code.name}
        if not isinstance(error, EngineFailed):  # its message may quote an input
            fields["error"] = str(error)
        _LOG.warning(message, extra=fields)
        self.metrics.retries.add(count, error.code.name)
        if isinstance(error, ModelServerLost):
            self.pool.suspect(server)

    def _poison(self, model_revision: ModelRevision, item: WorkItem, attempts: int) -> list[Request]:
        """Fail an item that makes engines fail, and refuse it from now on; returns the requests that this completes."""
        request: Request = item.waiters[0].request
        if request.generation is not None:
            model_revision.dispatcher.retries.quarantine(request.generation.prompt_ids, self.clock())
        code, said = item.refusal
        if code in _REFUSALS:
            return _completed(item, Failure(Code(code), said, attempts=attempts))
        message = f"{_POISON.message}: {said}" if said else _POISON.message
        return _completed(item, replace(_POISON, message=message, attempts=attempts))


def _completed(item: WorkItem, outcome: Outcome) -> list[Request]:
    """Give every waiting query of an item the same outcome; returns the requests that are complete by this."""
    finished: list[Request] = []
    for query in item.waiters:
        if not query.done:
            complete_input(query, outcome, finished)
    return finished
