"""Folders of sentence-transformers, of both layouts, give its vectors on both engines, whatever follows the model."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

LAB_S = 600
MEANS = ("mean", "mean-without-prompt", "norm", "norm-old", "residual")
BERTS = (
    *MEANS[:2],
    *("max", "max-old", "weightedmean", "mean-sqrt", "mean-cls", "mean-cls-dense", "every-old", "without-prompt"),
    *("without-prompt-cls", "norm", "norm-old", "dense-tanh-old", "dense-gelu", "residual", "between"),
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(LAB_S)]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `run_modules.py` wrote."""
    folder = tmp_path_factory.mktemp("modules")
    command = [sys.executable, "-m", "tests.integration.modelserver.run_modules", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LAB_S, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return [json.loads(line) for line in (folder / "modules.jsonl").read_text(encoding="utf-8").splitlines()]


def of(lines: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(each for each in lines if each.get("name") == name)


@pytest.mark.parametrize("engine", ["core", "direct"])
@pytest.mark.parametrize("name", BERTS)
def test_the_vectors_are_those_of_sentence_transformers(lines: list[dict[str, Any]], name: str, engine: str) -> None:
    assert of(lines, name)[engine] <= 1e-5


@pytest.mark.parametrize("engine", ["core", "direct"])
@pytest.mark.parametrize("name", MEANS)
def test_spans_are_the_means_of_transformers_states(lines: list[dict[str, Any]], name: str, engine: str) -> None:
    assert of(lines, name)["spans"][engine] <= 1e-5


def test_a_decoder_that_pools_by_the_mean_pools_spans_too(lines: list[dict[str, Any]]) -> None:
    assert of(lines, "mean-decoder")["spans"]["core"] <= 1e-5


@pytest.mark.parametrize("name", sorted({*BERTS, "padded", "decoder"} - {*MEANS}))
def test_another_pooling_pools_no_spans(lines: list[dict[str, Any]], name: str) -> None:
    assert "spans" not in of(lines, name)


@pytest.mark.parametrize("name", ["padded", "decoder"])
def test_a_model_that_only_core_computes_has_the_same_modules(lines: list[dict[str, Any]], name: str) -> None:
    assert of(lines, name)["core"] <= 1e-5
    assert "direct" not in of(lines, name)


@pytest.mark.parametrize("name", [*BERTS, "padded", "decoder", "mean-decoder"])
def test_the_dimensions_are_those_of_the_last_module(lines: list[dict[str, Any]], name: str) -> None:
    assert of(lines, name)["dimensions"] == of(lines, name)["expected_dimensions"]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("pooling_mode", 'pools by "median"'),
        ("activation_function", "has the activation mine.Gelu"),
        ("bias", "2_Dense cannot be read: .*bias"),
        ("truncate_dim", "shortens vectors to truncate_dim 16"),
    ],
)
def test_what_is_not_computed_is_refused_alike_by_check_and_at_the_start(
    lines: list[dict[str, Any]], key: str, says: str
) -> None:
    checked, started = next(each["said"] for each in lines if each.get("refused") == [key])
    assert checked == started
    assert says.partition(":")[0] in checked
    assert says.rpartition("*")[2] in checked
    assert "\n" not in checked
