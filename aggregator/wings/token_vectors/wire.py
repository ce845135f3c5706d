"""Make the responses to requests for a vector a token, or for the weights of tokens."""

from __future__ import annotations

from typing import cast

import numpy as np

from aggregator.request.request import Failure, Request
from aggregator.request.vector import Float32Matrix, Vector
from aggregator.sources.wire.encode import fill_status, fill_summary
from aggregator.wings.token_vectors.rules import largest_weights
from aggregator.wings.token_vectors.sequences import Sequences, sequences_of
from protos.embedding.v1 import embedding_pb2 as embedding
from protos.token_vectors.v1 import token_vectors_pb2 as pb


def response(request: Request, reply_id: str) -> pb.EmbedTokensResponse:
    """The response to a completed request, the same for gRPC, Kafka and Redis."""
    answer = pb.EmbedTokensResponse(replay=request.replay)
    fill_summary(answer, request, reply_id)
    for index, outcome in enumerate(request.outcomes):
        tokens = answer.inputs.add()
        if isinstance(outcome, Failure):
            fill_status(tokens.status, outcome)
        elif isinstance(outcome, Vector):
            _fill(tokens, request, index, outcome)
    return answer


def _fill(tokens: pb.Tokens, request: Request, index: int, found: Vector) -> None:
    tokens.status.SetInParent()
    tokens.token_count = found.token_count
    made = sequences_of(request)
    if made.weights:
        ids, weights = weights_of(made, index, found)
        tokens.ids.extend(ids)
        tokens.weights.extend(weights)
        return
    options, first, end = request.options, found.rows.start, found.rows.stop
    rows = found.batch.rows(options.dimensions, options.encoding, normalize=bool(options.normalize))
    tokens.embeddings = rows.data[first * rows.row_bytes : end * rows.row_bytes]
    tokens.dimensions = rows.dimensions
    tokens.encoding = cast("embedding.Encoding", options.encoding)
    if options.encoding == embedding.ENCODING_INT8:
        tokens.scales.extend(rows.scale(row) for row in found.rows)


def weights_of(made: Sequences, index: int, found: Vector) -> tuple[list[int], list[float]]:
    """The ids of an input's tokens, ascending, and the largest weight of each."""
    rows: Float32Matrix = found.batch.matrix[found.rows.start : found.rows.stop]
    ids, weights = largest_weights(made.ids[index], rows, made.special)
    return ids.tolist(), weights.tolist()


def vectors_of(request: Request, found: Vector) -> Float32Matrix:
    """The vectors of an input's tokens, float32 [tokens, dimensions]."""
    options = request.options
    rows = found.batch.rows(options.dimensions, embedding.ENCODING_FLOAT32, normalize=bool(options.normalize))
    matrix: Float32Matrix = np.frombuffer(rows.data, "<f4").reshape(-1, rows.dimensions)
    return matrix[found.rows.start : found.rows.stop]
