"""Vectors as bytes are described in one header, which clients can read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from aggregator.request.request import Defaults, Options
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.embeddings import EmbeddingsReader
from aggregator.sources.http.errors import FieldError
from tests.support.fake_source import GRPC, any_request
from tests.support.http_bodies import AnyRevision

DEFAULTS = Defaults(GRPC, "m", Priority.INTERACTIVE)
READ = EmbeddingsReader(AnyRevision(), trusts_token_ids=False)
MOST_OF_A_LINE = 65_536
"""Of a header: the limit of http.client."""


def read(texts: list[str], **fields: Any) -> Any:
    return READ(json.dumps({"input": texts, **fields}).encode(), DEFAULTS, "id")


def test_as_many_as_are_taken_fit_a_header_that_clients_read() -> None:
    _, answer = read(["a"] * 512, encoding_format="bytes")
    rows = np.zeros((512, 8192), np.float32)
    batch = CompletedBatch("batch-1", "a-model" * 9, "r1", 0, rows, 0.01, 0.02)
    outcomes = [Vector(batch, row, 7, 0.001) for row in range(512)]
    request = any_request(*["a"] * 512, outcomes=outcomes, options=Options(dimensions=8192), request_id="x" * 1024)
    header = answer.headers(request)["metadata"]
    assert len(json.loads(header)["data"]) == 512
    assert len(f"metadata: {header}\r\n") <= MOST_OF_A_LINE


@pytest.mark.parametrize("chunked", [False, True])
def test_more_are_refused_by_name_and_other_forms_take_them(chunked: bool) -> None:
    with pytest.raises(FieldError, match=r"512 at most, got 513: .* bytes_only or base64") as error:
        read(["a"] * 513, encoding_format="bytes", late_chunking=chunked)
    assert error.value.field == "encoding_format"
    for other in ("bytes_only", "base64", "float"):
        read(["a"] * 2048, encoding_format=other, late_chunking=chunked)
