"""Small random classifiers give the scores of sentence-transformers, on the engine that serves them on a CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LAB_S = 900
DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(LAB_S)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the lab wrote, by shape."""
    out = tmp_path_factory.mktemp("scoring") / "scores.jsonl"
    command = [sys.executable, "-m", "tests.integration.modelserver.run_scoring", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # with one thread nothing is measured about threads
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LAB_S, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = out.read_text(encoding="utf-8").splitlines()
    return {each["shape"]: each for each in map(json.loads, lines)}


def documented() -> dict[str, tuple[str, str]]:
    """The task and the engine of each shape, by the rows of the table of classifiers."""
    row = r"^\| .* \| (rank|classify) \| .* \| (core|direct) \| `([a-z0-9-]+)` \|$"
    rows = re.findall(row, DOCUMENT.read_text(), re.MULTILINE)
    return {shape: (task, engine) for task, engine, shape in rows}


@pytest.mark.parametrize("shape", documented())
def test_its_scores_are_those_of_sentence_transformers(lab: dict[str, dict[str, Any]], shape: str) -> None:
    """Of a short, a long and an empty document."""
    assert "error" not in lab[shape], lab[shape]
    expected, found = np.array(lab[shape]["expected"]), np.array(lab[shape]["scores"])
    assert np.ptp(expected, axis=0).min() > 1e-3, "the pairs do not differ"
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-4


def test_the_table_names_the_task_and_the_engine_of_each_shape(lab: dict[str, dict[str, Any]]) -> None:
    assert len(documented()) >= 15
    assert documented() == {shape: (found["tasks"][0], found["engine"]) for shape, found in lab.items()}
