"""Put a batch on the wire, and share out what came back among the queries that wait for it."""

from __future__ import annotations

import numpy as np

from aggregator.admission.model_revision import Served
from aggregator.errors import Code
from aggregator.replicas.engine import OutgoingBatch, StepResult
from aggregator.replicas.results import CompletedBatch, Vector
from aggregator.request import Failure, Outcome, Request, request_of
from aggregator.scheduler.dispatcher import Batch
from aggregator.scheduler.work_item import Query


def outgoing(batch: Batch) -> OutgoingBatch:
    """The batch as the wire carries it: ids and lengths end to end."""
    return OutgoingBatch(
        batch_id=batch.batch_id,
        token_ids=b"".join([entry.token_ids for entry in batch.entries]),
        lengths=np.array([entry.token_count for entry in batch.entries], dtype="<i4").tobytes(),
        query_count=len(batch.entries),
        token_count=batch.token_count,
        attempt=batch.attempt,
        isolate=batch.isolated,
        max_step_tokens=max(batch.lane.token_budget, batch.token_count),
    )


def share_out(served: Served, batch: Batch, result: StepResult, now_s: float) -> list[Request]:
    """Give every waiting query its row, or its error; returns the requests that this completed."""
    description, report = served.description, result.report
    batched_s = max(0.0, now_s - batch.cut_s - report.step_duration_s)
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
    cut_s = batch.cut_s
    finished: list[Request] = []
    for row, entry in enumerate(batch.entries):
        failure = failures.get(row) if failures else None
        for query in entry.waiters:
            if not query.done:
                outcome = failure or Vector(completed, row, entry.token_count, cut_s - query.enqueued_s)
                settle_query(query, outcome, finished)
    return finished


def settle_query(query: Query, outcome: Outcome, finished: list[Request]) -> None:
    """Give one query its outcome, unless its request was given up; note the request that this completes."""
    query.done = True
    request = request_of(query)
    if request.remaining and request.settle_input(query.index, outcome):
        finished.append(request)
