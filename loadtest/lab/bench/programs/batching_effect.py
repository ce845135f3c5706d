"""How far batching moves the vectors of MiniLM: each question alone, and in batches as large as a step.

`python -m loadtest.lab.bench.programs.batching_effect [DTYPE ...]` adds to the results, for each dtype, the largest
difference between components of a question's two unit vectors, 1 - the smallest cosine, and how many of the ten nearest
texts change, and prints them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from loadtest.lab.bench.figures import RESULTS, Figure, append
from modelserver import model_files
from modelserver.engines.choice import build
from modelserver.engines.engine import Engine
from modelserver.process_env import needs_v1_runner, prepare_engine_env
from modelserver.settings import EngineSettings, ModelServerSettings

_TEXTS = Path("loadtest/data/nq_open_dev_queries.txt")
_QUESTIONS, _NEAREST = 1000, 10
NAME = "batching"
_DTYPES = ("float32", "bfloat16", "float16")

Vectors = npt.NDArray[np.float32]


def main(dtypes: Sequence[str]) -> None:
    """Measure each dtype. Without a GPU, float16 is emulated, and slow."""
    prepare_engine_env(os.environ, local_model=True, v1_runner=needs_v1_runner("auto", causal=False))
    path = model_files.locate("", "")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    texts = [encoding.ids for encoding in tokenizer.encode_batch(_TEXTS.read_text(encoding="utf-8").splitlines())]
    for dtype in dtypes:
        settings = ModelServerSettings(engine=EngineSettings.model_validate({"dtype": dtype}))
        engine = build(settings, model_files.read(path, "")).engine
        figures = list(_compare(engine, dtype, texts))
        append(figures, RESULTS)
        print(*(f"{each.figure} {each.value:.2g}" for each in figures), sep=", ", flush=True)
        engine.close()


def _compare(engine: Engine, dtype: str, texts: Sequence[Sequence[int]]) -> Iterator[Figure]:
    together = _vectors(engine, _full(texts, engine.facts.step_token_capacity))
    alone = _vectors(engine, ([text] for text in texts[:_QUESTIONS]))
    batched, documents = together[:_QUESTIONS], together[_QUESTIONS:]
    moved = _nearest(alone, documents) != _nearest(batched, documents)
    kept = [
        len(set(one) & set(other))
        for one, other in zip(_nearest(alone, documents), _nearest(batched, documents), strict=True)
    ]
    found = {
        "largest_difference": float(np.abs(alone - batched).max()),
        "cosine_distance": 1.0 - float(np.einsum("ij,ij->i", alone, batched).min()),
        "top_10_churn": 1.0 - sum(kept) / (_NEAREST * _QUESTIONS),
        "reordered_questions": float(moved.any(axis=1).sum()),
    }
    notes = f"MiniLM {dtype}, {engine.facts.kind}, {_QUESTIONS} questions, steps of {engine.facts.step_token_capacity}"
    for name, value in found.items():
        yield Figure(NAME, f"{dtype}_{name}", value, "", 1, notes)


def _full(texts: Sequence[Sequence[int]], capacity: int) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    for text in texts:
        if sum(map(len, batch)) + len(text) > capacity:
            yield batch
            batch = []
        batch.append(text)
    yield batch


def _vectors(engine: Engine, batches: Iterator[list[Sequence[int]]]) -> Vectors:
    parts: list[Vectors] = []
    for batch in batches:
        ids = np.array([token for text in batch for token in text], np.int32)
        parts.append(engine.prepare(ids, np.array(list(map(len, batch)), np.int32)).execute())
    vectors = np.concatenate(parts)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _nearest(questions: Vectors, documents: Vectors) -> npt.NDArray[np.int64]:
    return np.argsort(-(questions @ documents.T), axis=1, kind="stable")[:, :_NEAREST]


if __name__ == "__main__":
    main(sys.argv[1:] or _DTYPES)
    sys.stdout.flush()
    os._exit(0)
