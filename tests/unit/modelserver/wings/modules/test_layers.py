"""Modules after a model's pooling: every key of their files is read in each layout, or refused with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelserver.engines.pooling import Modules, Pooling, read_modules
from modelserver.errors import CannotStart
from modelserver.wings.modules.layers import LAYERS, Dense, LayerNorm, Normalize
from tests.support.model_folder import write
from tests.support.sentence_folder import modules, pooled

DENSE = {"in_features": 8, "out_features": 4, "activation_function": "torch.nn.modules.activation.Tanh"}


def read_(folder: Path) -> Modules:
    found = read_modules(folder, LAYERS, trusted=False)
    assert found is not None
    return found


def refused(folder: Path, says: str) -> None:
    with pytest.raises(CannotStart, match=says):
        read_modules(folder, LAYERS, trusted=False)


def test_both_layouts_of_all_modules_are_read_alike(tmp_path: Path) -> None:
    kinds = ("Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm", "Normalize")
    old, new = tmp_path / "old", tmp_path / "new"
    names = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
    for folder in (old, new):
        modules(folder, *kinds, new=folder == new)
        write(folder, "3_Dense/config.json", DENSE | (names if folder == new else {"bias": False}))
        write(folder, "5_LayerNorm/config.json", {"dimension": 4})
        write(folder, "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": False})
    write(old, "1_Pooling/config.json", {"word_embedding_dimension": 8, "pooling_mode_max_tokens": True})
    write(new, "1_Pooling/config.json", {"embedding_dimension": 8, "pooling_mode": "max", "include_prompt": False})
    write(new, "2_Normalize/config.json", names)
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    transformer = {"transformer_task": "feature-extraction", "modality_config": {"text": text}}
    write(new, "sentence_bert_config.json", transformer | {"module_output_name": "token_embeddings"})

    def expected(folder: Path, *, bias: bool) -> tuple[Any, ...]:
        dense = Dense(folder / "3_Dense", 8, 4, bias=bias, activation="Tanh", residual=False)
        return (Normalize(folder / "2_Normalize"), dense, LayerNorm(folder / "5_LayerNorm", 4))

    assert read_(old) == Modules((Pooling.MAX,), expected(old, bias=False))
    assert read_(new) == Modules((Pooling.MAX,), expected(new, bias=True), leaves_prompts_out=True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"activation_function": "torch.nn.modules.activation.Softmax"}, "has the activation .*Softmax: those of"),
        ({"activation_function": "mine.Tanh"}, "has the activation mine.Tanh"),
        ({"activation_function": None}, "has the activation None"),
        ({"module_input_name": "token_embeddings"}, 'module_input_name to "token_embeddings": only sentence_embedding'),
        ({"dropout": 0.1}, "sets dropout to 0.1, which is not known"),
        ({"bias": "yes"}, 'sets bias to "yes"'),
        ({"in_features": 9}, "2_Dense in .*modules.json takes 9 dimensions, and gets 8"),
        ({"out_features": None}, "sets out_features to null"),
    ],
)
def test_a_dense_module_that_is_not_computed_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    pooled(tmp_path, "Dense")
    write(tmp_path, "2_Dense/config.json", DENSE | change)
    refused(tmp_path, says)


def test_what_a_dense_module_omits_is_as_sentence_transformers_has_it(tmp_path: Path) -> None:
    pooled(tmp_path, "Dense")
    write(tmp_path, "2_Dense/config.json", {"in_features": 8, "out_features": 4})
    assert read_(tmp_path).layers == (Dense(tmp_path / "2_Dense", 8, 4, bias=True, activation="Tanh", residual=False),)


@pytest.mark.parametrize(
    ("kind", "config", "says"),
    [
        ("Dense", None, "2_Dense/config.json is missing"),
        ("LayerNorm", {"dimension": 7}, "takes 7 dimensions, and gets 8"),
        ("LayerNorm", {"dimension": 8, "eps": 1e-3}, "sets eps to 0.001"),
        ("Normalize", {"module_input_name": "token_embeddings"}, "only sentence_embedding is computed"),
    ],
)
def test_every_key_of_every_module_is_asked(tmp_path: Path, kind: str, config: Any, says: str) -> None:
    pooled(tmp_path, kind)
    if config is not None:
        write(tmp_path, f"2_{kind}/config.json", config)
    refused(tmp_path, says)


@pytest.mark.parametrize(("activation", "rectifies"), [("ReLU", True), ("ReLU6", True), ("Tanh", False)])
def test_a_row_may_be_zero_behind_a_rectifier_alone(tmp_path: Path, activation: str, rectifies: bool) -> None:
    pooled(tmp_path, "Dense", "LayerNorm", "Normalize", "Normalize")
    write(tmp_path, "2_Dense/config.json", DENSE | {"activation_function": f"torch.nn.{activation}"})
    write(tmp_path, "3_LayerNorm/config.json", {"dimension": 4})
    assert [layer.rectifies for layer in read_(tmp_path).layers] == [rectifies, False, False]
