"""The size of an answer is known before it is computed: never below what is written, and not far above."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aggregator.request.request import Options, Request
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.sources.http.answer import Answer
from aggregator.sources.http.vectors import VectorList
from aggregator.sources.wire.encode import answer_bytes
from aggregator.sources.wire.values import encode
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import any_request

INPUTS = 50


def completed(options: Options, *, dimensions: int = 384, **changes: Any) -> Request:
    """A request of many texts of a model with so many dimensions, with changes."""
    matrix = np.random.default_rng(0).normal(size=(INPUTS, dimensions)).astype(np.float32) / np.float32(20)
    batch = CompletedBatch("batch-1", "a-model", "r1", 0, matrix, 0.01, 0.02)
    outcomes = [Vector(batch, row, 7, 0.001) for row in range(INPUTS)]
    return any_request(*["a text"] * INPUTS, outcomes=outcomes, options=options, **changes)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("encoding", [pb.ENCODING_FLOAT32, pb.ENCODING_FLOAT16, pb.ENCODING_INT8, pb.ENCODING_BINARY])
def test_a_message_with_vectors_is_no_larger_than_was_told(encoding: int, *, as_json: bool) -> None:
    request = completed(Options(dimensions=384, encoding=encoding))
    written = len(encode(request, "0" * 32, 0.0, as_json=as_json))
    told = answer_bytes(request, 0, as_json=as_json)
    assert written <= told
    assert told < 1.2 * written + 4000
    asked = completed(Options(encoding=encoding))
    assert answer_bytes(asked, 384, as_json=as_json) == told  # dimensions that the model decides


@pytest.mark.parametrize("form", ["float", "base64", "bytes", "bytes_only"])
@pytest.mark.parametrize("dtype", ["float", "float16", "int8", "uint8", "binary", "ubinary"])
def test_a_list_of_vectors_is_no_larger_than_was_told(dtype: str, form: str) -> None:
    check(VectorList("", dtype, form, is_swapped=False))


def check(answer: Answer) -> None:
    request = completed(Options(dimensions=384))
    written, told = len(answer.write(request)), answer.size_bytes(request)
    assert written <= told < 1.6 * written + 8000
