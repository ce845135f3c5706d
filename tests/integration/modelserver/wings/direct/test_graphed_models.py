"""Graphs compute what the direct engine computes without them, of every model and pooling that it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.modelserver.test_engines import BERTS
from tests.integration.modelserver.test_models import embedding_shapes, scoring_shapes
from tests.support.patience import patient

LAB_S = 900
FAMILIES = sorted(shape for shape, engines in embedding_shapes().items() if "direct" in engines)
SCORES = sorted(f"score {shape}" for shape, (_, engine) in scoring_shapes().items() if engine == "direct")
PROMPTED = [f"pool {name}" for name in BERTS if "without-prompt" in name]
POOLINGS = [f"pool {name}" for name in BERTS if "without-prompt" not in name]
SIZES = [64, 96, 128, 192, 256, 384, 512, 768, 1024]

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(LAB_S)]

Found = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The result of each model, by name."""
    folder = tmp_path_factory.mktemp("graphs")
    program = "tests.integration.modelserver.wings.direct.run_graphs"
    command = [sys.executable, "-m", program, str(folder), *FAMILIES, *SCORES, *POOLINGS, *PROMPTED]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=patient(LAB_S), check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = (folder / "graphs.jsonl").read_text(encoding="utf-8").splitlines()
    return {each["name"]: each for each in map(json.loads, lines)}


@pytest.mark.parametrize("name", [*FAMILIES, *SCORES, *POOLINGS])
def test_full_and_partly_full_steps_are_as_without_graphs_in_any_order(found: Found, name: str) -> None:
    assert "error" not in found[name], found[name]
    apart = found[name]["apart"]
    assert len(apart) == 8
    assert max(apart.values()) <= 1e-5, apart
    assert found[name]["sizes"] == SIZES
    assert found[name]["launches"] == ["graph"] * len(apart)
    assert found[name]["copies"] == len(apart)  # of the eager engine, which they are compared with


@pytest.mark.parametrize("name", PROMPTED)
def test_a_model_that_leaves_its_prompts_out_is_computed_without_graphs(found: Found, name: str) -> None:
    assert found[name]["sizes"] == []
    assert set(found[name]["launches"]) == {"eager"}
    assert max(found[name]["apart"].values()) == 0.0
