"""A tokenizer.json whose model has other files with an effect on tokens is refused, with a text that differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from modelserver import model_files
from modelserver.errors import CannotStart
from modelserver.tokenizer_check import TEXTS, compare_tokenizer
from tests.support.model_folder import change, write

pytestmark = pytest.mark.timeout(120)  # transformers, and torch with it, are imported once
transformers = pytest.importorskip("transformers")

FILES = ("config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in FILES:
        shutil.copy(model_files.locate("", "") / name, tmp_path / name)
    return tmp_path


def make_cased(folder: Path) -> None:
    """As the tokenizer of a cased BERT."""
    normalizer = json.loads((folder / "tokenizer.json").read_bytes())["normalizer"]
    change(folder, "tokenizer.json", normalizer={**normalizer, "lowercase": False})
    change(folder, "tokenizer_config.json", do_lower_case=False)


def compare(folder: Path) -> None:
    compare_tokenizer(model_files.read(folder, "r1"), trust_remote_code=False)


def test_a_tokenizer_that_is_whole_in_its_file_passes(model: Path) -> None:
    compare(model)


def test_one_lowering_texts_for_sentence_transformers_passes_and_lowers(model: Path) -> None:
    make_cased(model)
    compare(model)
    change(model, "sentence_bert_config.json", do_lower_case=True, max_seq_length=64)
    compare(model)


@pytest.mark.parametrize(
    ("name", "entries", "text"),
    [
        ("tokenizer_config.json", {"do_lower_case": False}, "UPPER Case"),
        ("tokenizer_config.json", {"strip_accents": False}, "Crème brûlée"),
        ("tokenizer_config.json", {"tokenize_chinese_chars": False}, "東京都"),
        ("sentence_bert_config.json", {"tokenizer_args": {"do_lower_case": False}}, "UPPER Case"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"1": {"content": "words", "special": True}}},
            "So words",
        ),
    ],
)
def test_an_effect_that_tokenizer_json_lacks_is_refused_with_the_text(
    name: str, entries: dict[str, Any], text: str, model: Path
) -> None:
    change(model, name, **entries)
    with pytest.raises(CannotStart, match=f"AutoTokenizer differ: the text '{text}.*save_pretrained"):
        compare(model)


@pytest.mark.parametrize("key", ["truncation", "padding"])
def test_truncation_and_padding_in_tokenizer_json_have_no_effect(key: str, model: Path) -> None:
    truncation = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "[PAD]"}  # fmt: skip
    change(model, "tokenizer.json", **{key: {"truncation": truncation, "padding": padding}[key]})
    compare(model)


def test_a_tokenizer_that_transformers_cannot_load_is_refused(model: Path) -> None:
    change(model, "tokenizer_config.json", tokenizer_class=7)
    with pytest.raises(CannotStart, match="transformers cannot load the tokenizer"):
        compare(model)


@pytest.mark.parametrize(
    ("lower", "saved_again", "refused"), [(True, False, False), (False, True, False), (True, True, True)]
)
def test_a_cased_model_with_a_limit_has_its_librarys_tokens_or_is_refused(
    lower: bool, saved_again: bool, refused: bool, model: Path, tmp_path: Path
) -> None:
    """In the old layout and the newest, whose tokenizer.json lowers and is loaded as one that does not."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    bert = transformers.BertConfig(vocab_size=30522, max_position_embeddings=512, **size)
    transformers.BertModel(bert).save_pretrained(model)
    make_cased(model)
    change(model, "sentence_bert_config.json", do_lower_case=lower, max_seq_length=64)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    write(model, "modules.json", modules)
    write(model, "1_Pooling/config.json", {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True})
    theirs = sentence_transformers.SentenceTransformer(str(model), device="cpu")
    if saved_again:
        model = tmp_path / "saved"
        theirs.save(str(model))
    if refused:
        with pytest.raises(CannotStart, match="AutoTokenizer differ: the text 'UPPER Case"):
            compare(model)
        change(model, "sentence_bert_config.json", do_lower_case=True)
    compare(model)
    files = model_files.read(model, "r1")
    assert files.max_input_tokens == theirs.max_seq_length == 64
    ours = Tokenizer.from_buffer(files.tokenizer["tokenizer.json"])
    ours.no_padding()
    ours.enable_truncation(64)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.tokenizer(text, truncation=True)["input_ids"], text
