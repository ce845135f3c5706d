"""Folders of MultiVectorEncoder, PyLate, ColBERT and BGE-M3 give the rows that their own libraries compute."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.patience import patient

TIMEOUT_S = 600
LAYOUTS = ("attended", "fixed", "least", "plain", "pylate", "stanford")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(TIMEOUT_S)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("token_vectors")
    for module in (
        "tests.support.token_vector_folders",
        "tests.integration.modelserver.wings.token_vectors.run_token_vectors",
    ):
        subprocess.run([sys.executable, "-m", module, str(folder)], check=True, timeout=patient(TIMEOUT_S))
    return [json.loads(line) for line in (folder / "found.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_token_has_the_vector_of_sentence_transformers(found: list[dict[str, Any]], name: str) -> None:
    (line,) = [each for each in found if each["name"] == name]
    assert line["apart"] <= 1e-5, line


@pytest.mark.parametrize("task", ["multi_vector", "sparse"])
def test_bge_m3_gives_what_flagembedding_computes(found: list[dict[str, Any]], task: str) -> None:
    (line,) = [each for each in found if each["name"] == "bge" and each["task"] == task]
    assert line["apart"] <= 1e-5, line


def test_vllms_own_classes_compute_what_attends_everywhere(found: list[dict[str, Any]]) -> None:
    engines = {line["name"]: line["engine"] for line in found}
    assert engines["attended"] == engines["plain"] == engines["bge"] == "direct"
