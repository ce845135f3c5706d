"""What the encodings cost in retrieval: real questions, the real MiniLM's vectors, through real gRPC."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadtest.questions import bundled_questions
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_engine import FakeEngine
from tests.support.listening import DESCRIPTION, MODEL_FOLDER, floats, listening, slow_engine, tokenizer

COUNT, QUERIES = 400, 100
PER_CALL = 200
Matrix = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def questions() -> list[str]:
    return bundled_questions()[:COUNT]


@pytest.fixture(scope="module")
def engine(questions: list[str]) -> FakeEngine:
    """Answers with what sentence-transformers computes for these questions."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - slow to import

    model = SentenceTransformer(str(MODEL_FOLDER), device="cpu")
    rows: Matrix = np.asarray(model.encode(questions, normalize_embeddings=False, batch_size=64), np.float32)
    counted = tokenizer().count(questions)
    ends = np.cumsum(counted.lengths)
    parts = np.split(counted.ids, ends[:-1])
    known = {part.tobytes(): row for part, row in zip(parts, rows, strict=True)}

    def look_up(ids: Any, lengths: Any, dimensions: int) -> Matrix:
        del dimensions
        return np.stack([known[part.tobytes()] for part in np.split(ids, np.cumsum(lengths)[:-1])])

    description = replace(DESCRIPTION, dimensions=rows.shape[1], matryoshka_dimensions=frozenset())
    return slow_engine(description, compute=look_up)


async def fetch(engine: FakeEngine, questions: list[str], encoding: str) -> Matrix:
    async with listening(engine) as door:
        answers = [
            await door.stub.Embed(
                pb.EmbedRequest(
                    inputs=[pb.Input(text=text) for text in questions[start : start + PER_CALL]],
                    encoding=f"ENCODING_{encoding}",
                )
            )
            for start in range(0, len(questions), PER_CALL)
        ]
    return np.stack([floats(embedding) for answer in answers for embedding in answer.embeddings])


def cosines(matrix: Matrix) -> Matrix:
    """Of the first questions with all others."""
    unit: Matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    found: Matrix = unit[:QUERIES] @ unit[QUERIES:].T
    return found


@pytest.mark.slow
async def test_the_documented_bounds_hold(engine: FakeEngine, questions: list[str]) -> None:
    exact = cosines(await fetch(engine, questions, "FLOAT32"))
    nearest = exact.argmax(axis=1)
    for encoding, error, agreement in (("FLOAT16", 0.0002, 0.99), ("INT8", 0.005, 0.98)):
        found = cosines(await fetch(engine, questions, encoding))
        assert np.abs(found - exact).max() <= error
        assert (found.argmax(axis=1) == nearest).mean() >= agreement
    ten = np.argsort(-cosines(await fetch(engine, questions, "BINARY")), axis=1)[:, :10]
    recalled = (ten == nearest[:, None]).any(axis=1).mean()
    assert recalled >= 0.9
