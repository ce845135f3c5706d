"""What follows a model's transformer: every key of its files is read in each layout, or refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modelserver.engines.choice import modules_of
from modelserver.engines.pooling import (
    Modules,
    Pooling,
    read_modules,
)
from modelserver.errors import CannotStart
from modelserver.model_files import TOKENIZER_FILE, ModelFiles, locate, read
from modelserver.settings import EngineSettings, ModelServerSettings
from tests.support.model_folder import write
from tests.support.sentence_folder import causal, modules, pooled


def read_(folder: Path) -> Modules:
    found = read_modules(folder, {}, trusted=False)
    assert found is not None
    return found


def refused(folder: Path, says: str) -> None:
    with pytest.raises(CannotStart, match=says):
        read_modules(folder, {}, trusted=False)


@pytest.mark.parametrize(
    ("config", "poolings"),
    [
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "cls mean"),
        ({}, "mean"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode": ["mean", "cls"], "include_prompt": True}, "mean cls"),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, "cls"),
    ],
)
def test_poolings_are_as_the_files_of_each_layout_say(tmp_path: Path, config: dict[str, Any], poolings: str) -> None:
    pooled(tmp_path, **config)
    assert read_(tmp_path) == Modules(tuple(map(Pooling, poolings.split())))


def test_a_folder_without_modules_or_a_pooling_is_pooled_as_vllm_does(tmp_path: Path) -> None:
    assert read_modules(tmp_path, {}, trusted=False) is None
    write(tmp_path, "1_Pooling/config.json", {"word_embedding_dimension": 8, "pooling_mode_max_tokens": True})
    assert read_(tmp_path) == Modules((Pooling.MAX,))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"pooling_mode": "median"}, 'pools by "median": cls, max, mean'),
        ({"pooling_mode": []}, r"pools by \[\]"),
        ({"pooling_mode_median_tokens": True}, "sets pooling_mode_median_tokens to true, which is not known"),
        ({"pooling_mode_mean_tokens": 1}, "sets pooling_mode_mean_tokens to 1: it must be true or false"),
        ({"include_prompt": None}, "sets include_prompt to null"),
        ({"word_embedding_dimension": "8"}, 'sets word_embedding_dimension to "8"'),
        ({"word_embedding_dimension": 0}, "sets word_embedding_dimension to 0"),
    ],
)
def test_a_pooling_that_is_not_computed_is_refused(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    pooled(tmp_path, **config)
    refused(tmp_path, says)


def test_a_module_without_a_reader_is_refused_unless_it_changes_nothing(tmp_path: Path) -> None:
    pooled(tmp_path, "Dropout", "Normalize")
    assert read_(tmp_path) == Modules((Pooling.MEAN,))
    write(tmp_path, "2_Dropout/config.json", {"dropout": 0.2, "scale": 2})
    refused(tmp_path, "sets scale to 2")
    pooled(tmp_path, "Dense")
    refused(tmp_path, "has a Dense module, which this build does not compute")
    pooled(tmp_path, "Normalize")
    write(tmp_path, "2_Normalize/config.json", {"module_input_name": "token_embeddings"})
    refused(tmp_path, "only sentence_embedding is computed")


@pytest.mark.parametrize("kind", ["MLMTransformer", "SpladePooling"])
def test_splade_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    pooled(tmp_path, kind)
    refused(tmp_path, "SPLADE is not served, as its row has the size of the vocabulary; BGE-M3 with model.task sparse")


@pytest.mark.parametrize(
    "kind", ["CNN", "LSTM", "BoW", "WordWeights", "WeightedLayerPooling", "Router", "Asym", "CLIPModel"]
)
def test_another_module_is_refused(tmp_path: Path, kind: str) -> None:
    pooled(tmp_path, kind)
    refused(tmp_path, f"has a sentence_transformers.models.{kind} module, which is not computed: Transformer, Pooling")


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (("Transformer",), "lists Transformer: a model is served that begins with"),
        (("Pooling", "Transformer"), "lists Pooling, Transformer"),
        (("Transformer", "Dense", "Pooling"), "lists Transformer, Dense, Pooling"),
        (("Transformer", "Pooling", "Pooling"), "second Pooling module"),
        (("custom_st.Transformer", "Pooling"), "code that was published with the model .* trust_remote_code"),
        (("Transformer", "somebody.Pooling"), "has a somebody.Pooling module"),
    ],
)
def test_modules_in_another_order_or_of_others_are_refused(tmp_path: Path, kinds: tuple[str, ...], says: str) -> None:
    modules(tmp_path, *kinds)
    write(tmp_path, "1_Pooling/config.json", {"word_embedding_dimension": 8})
    refused(tmp_path, says)


def test_a_published_transformer_is_taken_if_its_code_runs_or_vllm_has_it(tmp_path: Path) -> None:
    modules(tmp_path, "custom_st.Transformer", "Pooling")
    write(tmp_path, "1_Pooling/config.json", {"word_embedding_dimension": 8})
    write(tmp_path, "sentence_bert_config.json", {"of_its_own": 1})
    assert read_modules(tmp_path, {}, trusted=True) == Modules((Pooling.MEAN,))
    modules(tmp_path, "custom_st.Transformer")
    refused(tmp_path, "code that was published")
    write(tmp_path, "config.json", {"model_type": "jina_embeddings_v5"})
    assert read_modules(tmp_path, {}, trusted=False) is None


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, 'sets transformer_task .* to "fill-mask"'),
        ("sentence_bert_config.json", {"module_output_name": "sentence_embedding"}, "sets module_output_name"),
        ("sentence_bert_config.json", {"model_args": {"num_hidden_layers": 2}}, "sets model_args"),
        ("sentence_bert_config.json", {"config_kwargs": {"is_decoder": True}}, "sets config_kwargs"),
        ("sentence_bert_config.json", {"of_tomorrow": 1}, "sets of_tomorrow of its Transformer module to 1"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
            "sets modality_config",
        ),
        ("config_sentence_transformers.json", {"truncate_dim": 64}, "shortens vectors to truncate_dim 64: remove it"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "is a SparseEncoder of sentence-trans"),
    ],
)
def test_a_transformer_that_gives_other_states_is_refused(tmp_path: Path, file: str, content: Any, says: str) -> None:
    pooled(tmp_path)
    write(tmp_path, file, content)
    refused(tmp_path, says)


def test_how_a_transformer_computes_is_not_asked(tmp_path: Path) -> None:
    pooled(tmp_path)
    content = {
        "model_kwargs": {"attn_implementation": "sdpa", "dtype": "auto"},
        "config_args": None,
        "backend": "torch",
    }
    write(tmp_path, "sentence_bert_config.json", content)
    assert read_(tmp_path) == Modules((Pooling.MEAN,))


def test_a_module_of_unknown_keys_and_one_elsewhere_are_refused(tmp_path: Path) -> None:
    pooled(tmp_path)
    listed = json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))
    write(tmp_path, "modules.json", [listed[0] | {"path": "0_Transformer"}, listed[1]])
    refused(tmp_path, "has its Transformer in 0_Transformer")
    write(tmp_path, "modules.json", [listed[0], listed[1] | {"weight": 2}])
    refused(tmp_path, "says weight of its Pooling module")
    for nothing in ("[]", "{}", '["Pooling"]'):
        (tmp_path / "modules.json").write_text(nothing, encoding="utf-8")
        refused(tmp_path, "lists no modules")


def prompted(folder: Path, **prompts: str) -> ModelFiles:
    pooled(folder, include_prompt=False)
    write(folder, "config.json", {"architectures": ["BertModel"], "vocab_size": 30522, "hidden_size": 8})
    write(folder, "config_sentence_transformers.json", {"prompts": prompts})
    (folder / TOKENIZER_FILE).write_bytes((locate("", "") / TOKENIZER_FILE).read_bytes())
    return read(folder, "r")


def test_prompts_that_are_not_pooled_are_known_by_their_tokens(tmp_path: Path) -> None:
    found = modules_of(ModelServerSettings(), prompted(tmp_path, query="query: ", document="this query: "), {})
    assert found is not None
    assert found.prompts == ((101, 2023, 23032, 1024), (101, 23032, 1024))
    assert found.needs_place


def test_without_a_prompt_nothing_is_left_out(tmp_path: Path) -> None:
    found = modules_of(ModelServerSettings(), prompted(tmp_path, query="", other="other: "), {})
    assert found is not None
    assert not found.needs_place


def test_a_prompt_that_runs_into_its_text_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="prompt 'quer' are others before "):
        modules_of(ModelServerSettings(), prompted(tmp_path, query="quer"), {})


def test_code_is_run_only_where_the_settings_say_so(tmp_path: Path) -> None:
    files = prompted(tmp_path)
    modules(tmp_path, "custom_st.Transformer", "Pooling")
    trusting = ModelServerSettings(engine=EngineSettings(vllm_options={"trust_remote_code": True}))
    assert modules_of(trusting, files, {}) is not None
    with pytest.raises(CannotStart, match="trust_remote_code"):
        modules_of(ModelServerSettings(), files, {})


def test_only_a_last_normalize_is_left_to_the_aggregator(tmp_path: Path) -> None:
    files = causal(tmp_path)
    assert not files.normalizes
    pooled(tmp_path, "Normalize", "Dense")
    assert not read(tmp_path, "r").normalizes
    pooled(tmp_path, "Dense", "Normalize")
    assert read(tmp_path, "r").normalizes
