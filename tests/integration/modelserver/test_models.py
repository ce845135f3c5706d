"""A small random model of each row of docs/models.md gives the vectors and scores of transformers.

Vectors come through an aggregator, of models saved in an old layout of sentence-transformers, and some by the installed
one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.patience import patient

LAB_S = 900
NEWEST = "-newest"
SAVED_ANEW = ("bert-mean", "bert-masked", "gemma", "nomic", "qwen2", "qwen3")
"""Of each pooling, with layers after it, of weights that had a head: what the installed library writes otherwise."""
DOCUMENT = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(LAB_S)]

Found = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the lab wrote what it found."""
    folder = tmp_path_factory.mktemp("models")
    command = [sys.executable, "-m", "tests.integration.modelserver.run_families", str(folder), *SAVED_ANEW]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # with one thread nothing is measured about threads
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=patient(LAB_S), check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def vectors(folder: Path) -> Found:
    """Of each shape of an embedding model."""
    return read(folder / "families.jsonl")


@pytest.fixture(scope="module")
def scores(folder: Path) -> Found:
    """Of each shape of a classifier."""
    return read(folder / "scores.jsonl")


def read(file: Path) -> Found:
    return {each["shape"]: each for each in map(json.loads, file.read_text(encoding="utf-8").splitlines())}


def embedding_shapes() -> dict[str, list[str]]:
    """The engines of each shape, by the rows of the table."""
    engines: dict[str, list[str]] = {}
    for engine, shape in re.findall(r"^\| .* \| (core|direct) \|.*\| `([a-z0-9-]+)` \|$", DOCUMENT, re.MULTILINE):
        engines.setdefault(shape, []).append(engine)
    return engines


def scoring_shapes() -> dict[str, tuple[str, str]]:
    """The task and the engine of each shape, by the rows of the table of classifiers."""
    row = r"^\| .* \| (rank|classify) \| .* \| (core|direct) \| `([a-z0-9-]+)` \|$"
    return {shape: (task, engine) for task, engine, shape in re.findall(row, DOCUMENT, re.MULTILINE)}


@pytest.mark.parametrize("shape", [*embedding_shapes(), *(f"{shape}{NEWEST}" for shape in SAVED_ANEW)])
def test_its_vectors_are_those_of_transformers(vectors: Found, shape: str) -> None:
    assert "error" not in vectors[shape]
    assert vectors[shape]["difference"] <= 1e-5


def test_the_table_names_the_engine_that_serves_each_shape_on_a_cpu(vectors: Found) -> None:
    rows = embedding_shapes()
    assert sum(map(len, rows.values())) >= 15
    assert set(rows) == {shape.removesuffix(NEWEST) for shape in vectors}
    for shape, found in vectors.items():
        assert set(rows[shape.removesuffix(NEWEST)]) == {found["engine"]}


@pytest.mark.parametrize("shape", scoring_shapes())
def test_its_scores_are_those_of_sentence_transformers(scores: Found, shape: str) -> None:
    """Of a short, a long and an empty document."""
    assert "error" not in scores[shape], scores[shape]
    expected, found = np.array(scores[shape]["expected"]), np.array(scores[shape]["scores"])
    assert np.ptp(expected, axis=0).min() > 1e-3, "the pairs do not differ"
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-4


def test_the_table_names_the_task_and_the_engine_of_each_classifier(scores: Found) -> None:
    assert len(scoring_shapes()) >= 15
    assert scoring_shapes() == {shape: (found["tasks"][0], found["engine"]) for shape, found in scores.items()}
