"""Run batches of prompts: each is out until every prompt has its first token; then its sequences run by themselves.

A batch of suspects is out until each sequence is cleared.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from typing_extensions import override

from aggregator.admission.model_revision import ModelRevision
from aggregator.errors import BatchFailed, Code
from aggregator.model_server import ModelServer
from aggregator.pipeline.execute import BatchExecutor, Runner, completed
from aggregator.request.request import Failure, Request
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Task
from aggregator.wings.generation.costs import Lengths
from aggregator.wings.generation.metrics import GenerationMetrics, trace
from aggregator.wings.generation.running import RunningSequence, first_tokens
from aggregator.wings.generation.server import TASK, generating


class SequenceRunner(Runner):
    """The running sequences of all servers."""

    task: ClassVar[Task] = TASK

    def __init__(self, executor: BatchExecutor) -> None:
        self._executor = executor
        self._clock = executor.clock
        self._metrics = GenerationMetrics(executor.metrics.buffer)
        self._running: dict[Request, RunningSequence] = {}
        self._to_resume: list[tuple[RunningSequence, BatchFailed]] = []

    @override
    async def run(self, model_revision: ModelRevision, server: ModelServer, batch: Batch) -> StepReport | None:
        """Start or resume the sequences of a batch, and wait for their first tokens; a control has one token."""
        if batch.control:
            await generating(server).probe(batch.items[0].token_ids, timeout_s=batch.timeout_s)
            return None
        sequences: list[RunningSequence] = []
        for item in batch.items:
            if item.alive:
                sequence = RunningSequence(
                    model_revision,
                    generating(server),
                    batch,
                    item,
                    account=self._executor.metrics.costs.account(item.waiters[0].tenant),
                    on_end=self._ended,
                    on_lost=self._lost,
                    clock=self._clock,
                )
                self._running[sequence.request] = sequence
                sequences.append(sequence)
        for sequence in sequences:
            sequence.start()
        return await first_tokens(sequences, server, batch, self._clock)

    @override
    def give_up(self, request: Request) -> None:
        """Abort the sequence of a caller that went away, if one runs."""
        sequence = self._running.pop(request, None)
        if sequence is not None:
            sequence.abort()
            self._count_tokens(sequence)
            trace(self._executor.tracing, request, sequence.generation, self._clock(), Code.CANCELLED)
            self._executor.changed(sequence.model_revision)

    def _ended(self, sequence: RunningSequence, failure: Failure | None) -> None:
        request, generation, executor = sequence.request, sequence.generation, self._executor
        del self._running[request]
        now_s = self._clock()
        executor.limits.charge(request, len(generation.token_ids), now_s)
        usage = sequence.model_revision.usage
        assert isinstance(usage, Lengths), "A revision that embeds generated. This is a bug."
        usage.finished(generation, now_s - generation.started_s)
        self._count_tokens(sequence)
        self._metrics.generated(request.model, generation, now_s - request.received_s, request.received_s, failure)
        trace(executor.tracing, request, generation, now_s, failure.code if failure is not None else None)
        executor.complete(completed(sequence.item, failure or generation))
        executor.changed(sequence.model_revision)

    def _count_tokens(self, sequence: RunningSequence) -> None:
        generation, model = sequence.generation, sequence.model_revision.description.model
        tokens = generation.prompt_tokens + len(generation.token_ids)
        self._executor.metrics.costs.count(model, self.task, sequence.request.tenant, tokens)

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
        now_s, executor = self._clock(), self._executor
        groups: dict[tuple[ModelRevision, ModelServer, bool], list[tuple[RunningSequence, BatchFailed]]] = {}
        for sequence, error in to_resume:
            key = sequence.model_revision, sequence.server, sequence.generation.failures > 1
            groups.setdefault(key, []).append((sequence, error))
        for (model_revision, server, again), lost in groups.items():
            executor.report("generations resume on other servers", server, lost[0][1], len(lost))
            items = [sequence.item for sequence, _ in lost]
            address = server.description.address
            model_revision.dispatcher.lost(items, address, now_s, executor.jitter(), again=again)
            executor.changed(model_revision)
