"""The size of an answer with a vector a token is known before it is computed: never below what is written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aggregator.request.request import Options, Request
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.sources.wire.encode import answer_bytes
from aggregator.sources.wire.values import encode
from aggregator.wings.token_vectors.http import TokenLists
from aggregator.wings.token_vectors.kind import TOKEN_VECTORS
from aggregator.wings.token_vectors.sequences import Sequences
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import any_request

TEXTS, TOKENS = 20, 60


def completed(dimensions: int, encoding: int = pb.ENCODING_FLOAT32, *, weights: bool = False) -> Request:
    """A request of some texts; of weights each id is a large one, and comes once."""
    matrix = np.random.default_rng(0).normal(size=(TEXTS * TOKENS, dimensions)).astype(np.float32) / np.float32(20)
    matrix = np.abs(matrix) if weights else matrix
    batch = CompletedBatch("batch-1", "a-model", "r1", 0, matrix, 0.01, 0.02)
    ids = {text: np.arange(200_000 + text, 200_000 + text + TOKENS, dtype="<i4").tobytes() for text in range(TEXTS)}
    return any_request(
        *["a text"] * TEXTS,
        outcomes=[Vector(batch, text * TOKENS, TOKENS, 0.001, TOKENS) for text in range(TEXTS)],
        options=Options(dimensions=dimensions, encoding=encoding),
        kind=TOKEN_VECTORS,
        details=Sequences(ids, TEXTS * TOKENS, weights=weights),
    )


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("encoding", [pb.ENCODING_FLOAT32, pb.ENCODING_FLOAT16, pb.ENCODING_INT8, pb.ENCODING_BINARY])
@pytest.mark.parametrize("dimensions", [8, 96])
def test_a_message_of_vectors_is_no_larger_than_was_told(dimensions: int, encoding: int, *, as_json: bool) -> None:
    request = completed(dimensions, encoding)
    written = len(encode(request, "0" * 32, 0.0, as_json=as_json))
    assert written <= answer_bytes(request, 0, as_json=as_json) < 2.5 * written + 4000


@pytest.mark.parametrize("as_json", [False, True])
def test_a_message_of_weights_is_no_larger_than_was_told(*, as_json: bool) -> None:
    request = completed(1, weights=True)
    written = len(encode(request, "0" * 32, 0.0, as_json=as_json))
    assert written <= answer_bytes(request, 0, as_json=as_json) < 2.5 * written + 4000


@pytest.mark.parametrize(("weights", "is_base64"), [(False, False), (False, True), (True, False)])
def test_a_body_is_no_larger_than_was_told_and_long_ones_leave_the_loop(*, weights: bool, is_base64: bool) -> None:
    request, lists = completed(1 if weights else 96, weights=weights), TokenLists("", is_base64=is_base64)
    written = lists.write(request)
    assert len(written) <= lists.size_bytes(request) < 2 * len(written) + 4000
    assert lists.takes_long(request) is (not weights and not is_base64)  # 115,200 numbers
    data = json.loads(written)["data"]
    assert [each["index"] for each in data] == list(range(TEXTS))
