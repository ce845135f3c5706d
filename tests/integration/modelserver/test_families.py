"""A small random model of each family in docs/models.md, behind an aggregator, gives the vectors of transformers.

Saved in an old layout of sentence-transformers, and by the installed one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LAB_S = 900
NEWEST = "-newest"
NEEDS_CODE = frozenset(("arctic", "jina-v5-nano", "jina-v5-small", "nomic-published", "voyage"))
"""Files that sentence-transformers reads with published code alone, so that it cannot save them here."""
DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(LAB_S)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the lab wrote, by shape."""
    folder = tmp_path_factory.mktemp("families")
    command = [sys.executable, "-m", "tests.integration.modelserver.run_families", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # with one thread nothing is measured about threads
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LAB_S, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = (folder / "families.jsonl").read_text(encoding="utf-8").splitlines()
    return {each["shape"]: each for each in map(json.loads, lines)}


def documented() -> dict[str, list[str]]:
    """The engines of each shape, by the rows of the table."""
    engines: dict[str, list[str]] = {}
    for engine, shape in re.findall(
        r"^\| .* \| (core|direct) \|.*\| `([a-z0-9-]+)` \|$", DOCUMENT.read_text(), re.MULTILINE
    ):
        engines.setdefault(shape, []).append(engine)
    return engines


@pytest.mark.parametrize(
    "shape", [*documented(), *(f"{shape}{NEWEST}" for shape in sorted(documented().keys() - NEEDS_CODE))]
)
def test_its_vectors_are_those_of_transformers(lab: dict[str, dict[str, Any]], shape: str) -> None:
    assert "error" not in lab[shape]
    assert lab[shape]["difference"] <= 1e-5


def test_the_table_names_the_engine_that_serves_each_shape_on_a_cpu(lab: dict[str, dict[str, Any]]) -> None:
    rows = documented()
    assert sum(map(len, rows.values())) >= 15
    assert set(rows) == {shape.removesuffix(NEWEST) for shape in lab}
    for shape, found in lab.items():
        assert set(rows[shape.removesuffix(NEWEST)]) == {found["engine"]}
