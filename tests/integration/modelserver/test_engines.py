"""vLLM's two ways against the libraries that users compare with: LLM.embed and sentence-transformers.

Folders of sentence-transformers, of both layouts, give its vectors on both engines, whatever follows the model.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from modelserver.engines.model_config import capture_sizes
from modelserver.registry import ALTERNATIVES
from tests.integration.modelserver.texts import generated, questions, token_ids
from tests.support.patience import patient

LAB_S = 600
ENGINES = ("core", *ALTERNATIVES)
QUESTIONS = 60
MEANS = ("mean", "mean-without-prompt", "norm", "norm-old", "residual")
BERTS = (
    *MEANS[:2],
    *("max", "max-old", "weightedmean", "mean-sqrt", "mean-cls", "mean-cls-dense", "every-old", "without-prompt"),
    *("without-prompt-cls", "norm", "norm-old", "dense-tanh-old", "dense-gelu", "residual", "between"),
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(LAB_S)]

Vectors = npt.NDArray[np.float32]


class Lab:
    """What `run_engines` and `run_modules` wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        lines = (folder / "modules.jsonl").read_text(encoding="utf-8").splitlines()
        self.modules: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def of(self, name: str) -> dict[str, Any]:
        """Of one folder of sentence-transformers."""
        return next(each for each in self.modules if each.get("name") == name)

    def array(self, job: str, name: str) -> Vectors:
        with np.load(self._folder / f"{job}.npz") as arrays:
            return np.asarray(arrays[name], np.float32)

    def figure(self, job: str, name: str) -> Any:
        return json.loads((self._folder / f"{job}.json").read_text(encoding="utf-8"))[name]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    command = [sys.executable, "-m", "tests.integration.modelserver.run_modules", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(LAB_S), check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return Lab(folder)


def unit(matrix: Vectors) -> Vectors:
    return np.asarray(matrix / np.linalg.norm(matrix, axis=1, keepdims=True), np.float32)


def test_the_texts_span_1_to_256_tokens_and_several_scripts() -> None:
    lengths = [len(ids) for ids in token_ids(questions(QUESTIONS) + generated())]
    assert min(lengths) <= 3
    assert max(lengths) == 256
    assert len(set(lengths)) > 20


@pytest.mark.parametrize("engine", ENGINES)
def test_in_float32_vectors_equal_those_of_llm_embed(lab: Lab, engine: str) -> None:
    ours, oracle = lab.array("minilm_float32", engine), lab.array("minilm_float32", "oracle")
    assert ours.shape == oracle.shape
    assert np.abs(unit(ours) - oracle).max() <= 1e-5


def test_a_closed_engine_frees_the_weights_before_the_next_one_is_loaded(lab: Lab) -> None:
    before, after = lab.figure("freed", "bytes")
    assert before > 40_000_000
    assert after == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_vectors_are_pooled_but_not_normalised(lab: Lab, engine: str) -> None:
    assert (np.abs(np.linalg.norm(lab.array("minilm_float32", engine), axis=1) - 1) > 0.1).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("job", "least"), [("minilm_float32", 0.99999), ("minilm_bfloat16", 0.999)])
def test_vectors_point_where_those_of_sentence_transformers_do(lab: Lab, job: str, least: float, engine: str) -> None:
    found = unit(lab.array(job, engine))
    cosines = (found * lab.array("reference", "vectors")[: len(found)]).sum(axis=1)
    assert cosines.min() >= least


@pytest.mark.parametrize(("able", "dtype"), [("none", "float32"), ("avx512", "bfloat16"), ("arm", "bfloat16")])
def test_bfloat16_is_chosen_where_the_processor_multiplies_it(lab: Lab, able: str, dtype: str) -> None:
    assert lab.figure("dtypes", able) == dtype


def test_vllm_captures_the_graphs_asked_for_and_none_if_none_are(lab: Lab) -> None:
    assert lab.figure("captured", "asked") == list(capture_sizes(1024))
    assert lab.figure("captured", "direct") == lab.figure("captured", "eager") == []
    assert lab.figure("captured", "own") == [16, 64]


def test_on_a_gpu_an_encoder_takes_a_tenth_of_memory_unless_told_not_to(lab: Lab) -> None:
    assert lab.figure("captured", "shares") == [0.1, 0.5]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unknown", "NobodysModel"),
        ("classifier", "sentence-transformers' Transformer is computed"),
        ("jina-v3", "serve jinaai/jina-embeddings-v3-hf instead"),
        ("gte-v1.5", "set trust_remote_code in engine.vllm_options"),
    ],
)
def test_check_and_the_start_refuse_alike_a_model_that_cannot_be_served(lab: Lab, name: str, said: str) -> None:
    checked, started = lab.figure("refused", name)
    assert checked == started
    assert said in checked
    assert "\n" not in checked


def test_an_id_outside_the_vocabulary_would_be_survived_by_the_engine(lab: Lab) -> None:
    assert lab.figure("minilm_float32", "recovers") == dict.fromkeys(ENGINES, True)


def test_a_query_too_long_for_the_engine_would_be_told_as_a_break(lab: Lab) -> None:
    assert lab.figure("minilm_float32", "breaks")


def test_a_rebuilt_engine_computes_what_the_broken_one_did(lab: Lab) -> None:
    before, after = lab.array("minilm_float32", "core")[:QUESTIONS], lab.array("minilm_rebuilt", "core")
    assert np.abs(unit(before) - unit(after)).max() <= 1e-5


def test_vllm_leaves_the_threads_of_a_step_to_the_model_server(lab: Lab) -> None:
    assert lab.figure("minilm_rebuilt", "threads") == [1, 3, 3]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", BERTS)
def test_the_vectors_are_those_of_sentence_transformers(lab: Lab, name: str, engine: str) -> None:
    assert lab.of(name)[engine] <= 1e-5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MEANS)
def test_spans_are_the_means_of_transformers_states(lab: Lab, name: str, engine: str) -> None:
    assert lab.of(name)["spans"][engine] <= 1e-5


def test_a_decoder_that_pools_by_the_mean_pools_spans_too(lab: Lab) -> None:
    assert lab.of("mean-decoder")["spans"]["core"] <= 1e-5


@pytest.mark.parametrize("name", sorted({*BERTS, "padded", "decoder"} - {*MEANS}))
def test_another_pooling_pools_no_spans(lab: Lab, name: str) -> None:
    assert "spans" not in lab.of(name)


@pytest.mark.parametrize("name", ["padded", "decoder"])
def test_a_model_that_only_core_computes_has_the_same_modules(lab: Lab, name: str) -> None:
    assert lab.of(name)["core"] <= 1e-5
    assert lab.of(name).keys().isdisjoint(ALTERNATIVES)


@pytest.mark.parametrize("name", [*BERTS, "padded", "decoder", "mean-decoder"])
def test_the_dimensions_are_those_of_the_last_module(lab: Lab, name: str) -> None:
    assert lab.of(name)["dimensions"] == lab.of(name)["expected_dimensions"]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("pooling_mode", 'pools by "median"'),
        ("activation_function", "has the activation mine.Gelu"),
        ("bias", "2_Dense cannot be read: .*bias"),
        ("truncate_dim", "shortens vectors to truncate_dim 16"),
    ],
)
def test_what_is_not_computed_is_refused_alike_by_check_and_at_the_start(lab: Lab, key: str, says: str) -> None:
    checked, started = next(each["said"] for each in lab.modules if each.get("refused") == [key])
    assert checked == started
    assert says.partition(":")[0] in checked
    assert says.rpartition("*")[2] in checked
    assert "\n" not in checked
