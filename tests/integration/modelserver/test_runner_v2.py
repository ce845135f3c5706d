"""Both kinds of engine on vLLM's second model runner, which is the one on GPUs: its kernels are interpreted here."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

RUN = (sys.executable, "-m", "tests.integration.modelserver.on_runner_v2")
KINDS = ("qwen3", "modernbert")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the lab wrote."""
    folder = tmp_path_factory.mktemp("runner_v2")
    command = [*RUN, "tests.integration.modelserver.run_runner_v2", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "lab.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_equal_those_of_transformers(lab: Any, kind: str) -> None:
    assert lab[kind]["runner"].startswith("vllm.v1.worker.gpu.")
    assert lab[kind]["difference"] <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_the_direct_engine_names_the_runner_that_it_needs(lab: Any, kind: str) -> None:
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in lab[kind]["direct"]


def test_generated_tokens_are_those_of_transformers(lab: Any) -> None:
    assert lab["generation"]["greedy"] == lab["generation"]["expected"]


def test_top_k_and_top_p_leave_only_the_likeliest_tokens(lab: Any) -> None:
    greedy = lab["generation"]["greedy"]
    assert lab["generation"]["truncated"] == [greedy[:4]] * 2


def test_a_seeded_sequence_continues_the_same_from_any_position_and_beside_others(lab: Any) -> None:
    seeded = lab["generation"]["seeded"]
    assert seeded["resumed"] == [seeded["whole"]] * 3
    assert seeded["beside"] == seeded["whole"]
    assert seeded["other seed"] != seeded["whole"]


def test_an_aborted_sequence_frees_its_memory_before_the_next_step(lab: Any) -> None:
    before, during, after = lab["generation"]["freed"]
    assert during < before == after


def test_the_engine_that_a_model_server_builds_embeds_as_transformers_does(lab: Any) -> None:
    assert lab["minilm"] <= 1e-5
