"""Turn a settled request into the public response message."""

from __future__ import annotations

from aggregator.errors import Code
from aggregator.request import Failure, Request
from aggregator.vectors import CompletedBatch, Vector
from protos.embedding.v1 import embedding_pb2 as pb

MAX_ECHOED = 1024
"""Characters of an id, or of a model's name, in the answer to what was not taken."""


def response(request: Request, reply_id: str) -> pb.EmbedResponse:
    """The answer to a request whose every input has an outcome; on gRPC and on Kafka alike."""
    answer = summary(request, reply_id)
    for outcome in request.outcomes:
        if isinstance(outcome, Vector):
            _fill(answer.embeddings.add(), outcome, request)
        elif outcome is not None:
            fill_status(answer.embeddings.add().status, outcome)
    return answer


def summary(request: Request, reply_id: str) -> pb.EmbedResponse:
    """All of the answer but its embeddings."""
    answer = pb.EmbedResponse(request_id=request.request_id, model=request.model, reply_id=reply_id)
    status = answer.status
    slowest: Vector | None = None
    for outcome in request.outcomes:
        if isinstance(outcome, Vector):
            if slowest is None or outcome.queued_s > slowest.queued_s:
                slowest = outcome
            continue
        assert outcome is not None, "A request was answered before its last input settled. This is a bug."
        if status.code == Code.OK:
            fill_status(status, outcome)
    if slowest is not None:
        _describe_batch(answer, slowest.batch, slowest.queued_s)
    return answer


def _fill(embedding: pb.Embedding, vector: Vector, request: Request) -> None:
    options = request.options
    rows = vector.batch.rows(options.dimensions, options.encoding, normalize=bool(options.normalize))
    embedding.embedding = rows.row(vector.row)
    embedding.dimensions = rows.dimensions
    embedding.encoding = options.encoding  # type: ignore[assignment]
    embedding.token_count = vector.token_count
    embedding.scale = rows.scale(vector.row)
    embedding.status.SetInParent()


def fill_status(status: pb.Status, failure: Failure) -> None:
    """Say in a public message why something failed."""
    status.code = failure.code
    status.message = failure.message
    status.retryable = failure.retryable
    if failure.retry_after_s:
        status.retry_delay.FromNanoseconds(int(failure.retry_after_s * 1e9))


def _describe_batch(answer: pb.EmbedResponse, batch: CompletedBatch, queued_s: float) -> None:
    answer.model = batch.model
    answer.model_revision = batch.model_revision
    answer.batch_id = batch.batch_id
    answer.attempt = batch.attempt
    answer.timings.queued.FromNanoseconds(int(queued_s * 1e9))
    answer.timings.batched.FromNanoseconds(int(batch.batched_s * 1e9))
    answer.timings.inference.FromNanoseconds(int(batch.inference_s * 1e9))
