"""Fuzz the bodies of requests over HTTP: what is read, refused and answered."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from aggregator.errors import Code, TokenbatchError
from aggregator.request.kind import Kind
from aggregator.request.request import Defaults, Failure, Request
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.scheduler.work_item import Priority
from aggregator.sources.calls.calls import Call
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.http.answer import Answer, Read
from aggregator.sources.http.embeddings import EmbeddingsReader
from aggregator.sources.http.errors import described
from aggregator.sources.wire.message import parse
from tests.fuzz.target import Target
from tests.support.fake_source import GRPC
from tests.support.http_bodies import AnyRevision, room

DEFAULTS = Defaults(GRPC, "m", Priority.INTERACTIVE, max_inputs=5)
_FAILURE = Failure(Code.INTERNAL, "it broke")
_MOST_CHARACTERS = 301
_ORIGIN = Call(room())


_EMBEDDINGS = EmbeddingsReader(AnyRevision(), trusts_token_ids=False)


def refused(error: TokenbatchError) -> None:
    """Its response can be written, and does not send a whole body back."""
    status, body, _ = described(Failure.of(error))
    shown = json.loads(body)["error"]
    assert status == 400, "A body is at fault, but not by its status."
    assert len(shown["message"]) <= _MOST_CHARACTERS, "A refusal quotes too much."


def parsed(kind: Kind, message: Any) -> Request:
    return parse(kind, message, DEFAULTS, _ORIGIN, received_s=0.0, wall_s=1000.0)


def check_embeddings(data: bytes) -> None:
    """A body of /v1/embeddings."""
    check_read(_EMBEDDINGS, data)


def check_read(read: Read, data: bytes, kind: Kind = EMBEDDING, dimensions: int = 16) -> None:
    """Reads, refuses and answers a body of a kind, whose results have so many numbers."""
    try:
        message, answer = read(data, DEFAULTS, "id")
        request = parsed(kind, message)
    except TokenbatchError as error:
        refused(error)
        return
    assert 0 < len(request.inputs) <= DEFAULTS.max_inputs, "More inputs than are taken, or none."
    _write_vectors(request, answer, dimensions)
    if not answer.needs_all and len(request.inputs) > 1:
        request.outcomes, request.failed = [_FAILURE, *request.outcomes[1:]], True
        assert answer.failure(request) is None, "A text that has no score costs the others theirs."
        json.loads(answer.write(request))
    request.outcomes, request.remaining = [None] * len(request.inputs), len(request.inputs)
    request.fail(_FAILURE)
    found = answer.failure(request)
    assert found is not None, "A failed request has no failure."
    described(found)


def _write_vectors(request: Request, answer: Answer, dimensions: int) -> None:
    """Every input gets a vector, whatever is asked of it."""
    count = len(request.inputs)
    matrix = np.ones((count, dimensions), np.float32)
    batch = CompletedBatch("b", "m", "r", 0, matrix, 0.0, 0.0)
    request.outcomes = [Vector(batch, row, 3, 0.0) for row in range(count)]
    request.failed = False
    headers = answer.headers(request)
    assert all("\n" not in value and value.isascii() for value in headers.values()), "A header breaks the response."
    body = answer.write(request)
    if headers["content-type"] == "application/json":
        json.loads(body)


TARGETS = (Target("http_embeddings", check_embeddings),)
