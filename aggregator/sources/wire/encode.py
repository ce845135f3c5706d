"""Turn a completed request into the public response message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from aggregator.errors import Code
from aggregator.request.request import Failure, Options, Request
from aggregator.request.vector import CompletedBatch, EncodedRows, Vector
from protos.embedding.v1 import embedding_pb2 as pb

MAX_ECHOED = 1024
"""Characters of an id, or of a model's name, in the reply to a refused request."""


def response(request: Request, reply_id: str) -> pb.EmbedResponse:
    """The response to a completed request, the same for gRPC and Kafka."""
    answer, options = summary(request, reply_id), request.options
    answer.replay = request.replay
    for outcome in request.outcomes:
        if isinstance(outcome, Vector):
            rows = outcome.batch.rows(options.dimensions, options.encoding, normalize=bool(options.normalize))
            answer.embeddings.append(_embedded(outcome, rows, options.encoding))
        elif isinstance(outcome, Failure):
            fill_status(answer.embeddings.add().status, outcome)
    return answer


def summary(request: Request, reply_id: str) -> pb.EmbedResponse:
    answer = pb.EmbedResponse()
    fill_summary(answer, request, reply_id)
    return answer


def fill_summary(answer: Any, request: Request, reply_id: str) -> None:
    """Everything of a response but its results: the messages of all tasks have the same fields for it."""
    answer.request_id, answer.model, answer.reply_id = request.request_id, request.model, reply_id
    status = answer.status
    slowest: Vector | None = None
    cached = 0
    for outcome in request.outcomes:
        if isinstance(outcome, Vector):
            cached += outcome.batch.cached
            if slowest is None or outcome.queued_s > slowest.queued_s:
                slowest = outcome
            continue
        assert isinstance(outcome, Failure), "A request was answered before its last input was complete. This is a bug."
        if status.code == Code.OK:
            fill_status(status, outcome)
    answer.cached = cached
    if slowest is not None:
        _describe_batch(answer, slowest.batch, slowest.queued_s)


def fill_status(status: pb.Status, failure: Failure) -> None:
    status.code = failure.code
    status.message = failure.message
    status.retryable = failure.retryable
    if failure.retry_after_s:
        status.retry_delay.FromNanoseconds(int(failure.retry_after_s * 1e9))


def _describe_batch(answer: Any, batch: CompletedBatch, queued_s: float) -> None:
    answer.model = batch.model
    answer.model_revision = batch.model_revision
    answer.batch_id = batch.batch_id
    answer.attempt = batch.attempt
    answer.timings.queued.FromNanoseconds(int(queued_s * 1e9))
    answer.timings.batched.FromNanoseconds(int(batch.batched_s * 1e9))
    answer.timings.inference.FromNanoseconds(int(batch.inference_s * 1e9))


_INPUT_BYTES = 700
"""Of an input's objects on its way through the queue: query, work item, token ids, result."""
_ANSWER_BYTES = 400
"""Of a response besides its results: ids, model, times, and its headers."""
_RESULT_BYTES = 40
"""Of a result besides its vector and its document: the tokens, the status, the lengths of fields."""
_NAMES_BYTES = 100
"""Of a result's names in JSON."""


def made_bytes(request: Request) -> int:
    """The memory of what is made of its inputs."""
    return _INPUT_BYTES * len(request.inputs)


def answer_bytes(request: Request, dimensions: int, *, as_json: bool = False) -> int:
    """The size of its response as it will be written, in protobuf or JSON; `dimensions`: of the model's vectors."""
    rows, size = request.vector_count, request.kind.result_bytes(request, dimensions)
    if as_json:  # of which vectors are in base64
        size = size * 4 // 3 + _NAMES_BYTES
    return _ANSWER_BYTES + rows * (_RESULT_BYTES + size)


def to_protobuf(request: Request, reply_id: str) -> bytes:
    outcome = request.outcomes[0]
    if len(request.outcomes) == 1 and isinstance(outcome, Vector) and not outcome.chunks:
        batch, options = outcome.batch, request.options
        shared: _Shared = batch.shared.get(id(options)) or _Shared(batch, options)
        return shared.protobuf(request.request_id, outcome, reply_id)
    if request.options.encoding == pb.ENCODING_INT8:  # each vector has its own scale: nothing is shared
        return response(request, reply_id).SerializeToString()
    return b"".join(_pieces(request, reply_id))


def _pieces(request: Request, reply_id: str) -> Iterator[bytes]:
    """The response to many inputs; protobuf would copy the vectors three times, and block all threads while it does."""
    yield summary(request, reply_id).SerializeToString()
    options = request.options
    for outcome in request.outcomes:
        if isinstance(outcome, Vector):
            rows = outcome.batch.rows(options.dimensions, options.encoding, normalize=bool(options.normalize))
            if outcome.chunks:
                whole = pb.EmbedResponse(embeddings=[_embedded(outcome, rows, options.encoding)])
                yield whole.SerializeToString()
                continue
            sizes = rows.row_bytes, rows.dimensions
            around = _around_vector(*sizes, options.encoding, outcome.token_count, 0.0)
            yield around[0]
            yield rows.row(outcome.row)
            yield around[1]
        elif isinstance(outcome, Failure):
            failed = pb.EmbedResponse()
            fill_status(failed.embeddings.add().status, outcome)
            yield failed.SerializeToString()


def json_of(answer: Message) -> bytes:
    return json.dumps(MessageToDict(answer), ensure_ascii=False, separators=(",", ":")).encode()


class _Shared:
    """The common part of the replies to one batch, for requests of one input with the same options.

    Protobuf merges messages that are concatenated. So the common part is encoded once, and each reply is a
    concatenation of it with the encoded ids and vector.
    """

    def __init__(self, batch: CompletedBatch, options: Options) -> None:
        self.options = options  # kept, as it is found by its id
        self._rows = batch.rows(options.dimensions, options.encoding, normalize=bool(options.normalize))
        self._encoding = options.encoding
        common = pb.EmbedResponse(
            model=batch.model,
            model_revision=batch.model_revision,
            batch_id=batch.batch_id,
            attempt=batch.attempt,
            cached=int(batch.cached),
        )
        common.timings.batched.FromNanoseconds(int(batch.batched_s * 1e9))
        common.timings.inference.FromNanoseconds(int(batch.inference_s * 1e9))
        self._common = common.SerializeToString()
        self._with_timings: dict[float, bytes] = {}
        batch.shared[id(options)] = self

    def protobuf(self, request_id: str, vector: Vector, reply_id: str) -> bytes:
        common = self._with_timings.get(vector.queued_s) or self._add_timings(vector.queued_s)
        rows = self._rows
        scale = rows.scale(vector.row)
        before, after = _around_vector(rows.row_bytes, rows.dimensions, self._encoding, vector.token_count, scale)
        own_id, own_reply_id = request_id.encode(), reply_id.encode()
        own = rows.row(vector.row)
        return b"".join(
            (
                common,
                before,
                own,
                after,
                _before_request_id(len(own_id)),
                own_id,
                _before_reply_id(len(own_reply_id)),
                own_reply_id,
            )
        )

    def _add_timings(self, queued_s: float) -> bytes:
        own = pb.EmbedResponse()
        own.timings.queued.FromNanoseconds(int(queued_s * 1e9))
        whole = self._with_timings[queued_s] = self._common + own.SerializeToString()
        return whole


def _embedded(found: Vector, rows: EncodedRows, encoding: int) -> pb.Embedding:
    if not found.chunks:
        scale, vector = rows.scale(found.row), rows.row(found.row)
        return _embedding(vector, rows.dimensions, encoding, found.token_count, scale)
    embedding = _embedding(b"", rows.dimensions, encoding, found.token_count, 0.0)
    for row in found.rows:
        embedding.chunks.add(embedding=rows.row(row), scale=rows.scale(row))
    return embedding


def _embedding(vector: bytes, dimensions: int, encoding: int, token_count: int, scale: float) -> pb.Embedding:
    embedding = pb.Embedding(
        embedding=vector,
        dimensions=dimensions,
        encoding=encoding,  # type: ignore[arg-type]
        token_count=token_count,
        scale=scale,
    )
    embedding.status.SetInParent()
    return embedding


@lru_cache(maxsize=1024)
def _around_vector(
    row_bytes: int, dimensions: int, encoding: int, token_count: int, scale: float
) -> tuple[bytes, bytes]:
    vector = b"\xff" * row_bytes
    reply = pb.EmbedResponse(embeddings=[_embedding(vector, dimensions, encoding, token_count, scale)])
    before, _, after = reply.SerializeToString().partition(vector)
    return before, after


@lru_cache(maxsize=256)
def _before_request_id(size_bytes: int) -> bytes:
    return pb.EmbedResponse(request_id="x" * size_bytes).SerializeToString()[: -size_bytes or None]


@lru_cache(maxsize=256)
def _before_reply_id(size_bytes: int) -> bytes:
    return pb.EmbedResponse(reply_id="x" * size_bytes).SerializeToString()[: -size_bytes or None]
