"""What a model's own files say of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from modelserver import model_files
from modelserver.errors import CannotStart
from modelserver.model_files import tokenizer_fingerprint
from modelserver.tokenizer_check import check_tokenizer
from tests.support.model_folder import write

TOKENIZER = json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write(folder, "config.json", {"vocab_size": 100, "hidden_size": 8, "max_position_embeddings": 512})
    (folder / "tokenizer.json").write_text(TOKENIZER, encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    return folder


def test_the_default_model_is_the_minilm_of_its_wheel() -> None:
    files = model_files.read(model_files.locate("", ""), "")
    assert (files.vocabulary_size, files.hidden_size, files.max_input_tokens) == (30522, 384, 256)
    assert files.normalizes
    assert files.revision.startswith("sha256:")
    check_tokenizer(files)


def test_a_hub_name_is_found_in_the_cache_with_its_commit_as_revision(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "c" * 40
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    model.rename(snapshot)
    asked: list[tuple[str, str | None]] = []

    def download(name: str, *, revision: str | None, ignore_patterns: list[str]) -> str:
        assert ignore_patterns
        asked.append((name, revision))
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    path = model_files.locate("owner/name", "main")
    assert model_files.read(path, "").revision == commit
    assert asked == [("owner/name", "main")]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.json", None, r"holds no config\.json"),
        ("config.json", "{", r"config\.json is not valid JSON"),
        ("tokenizer.json", None, "save_pretrained"),
    ],
)
def test_a_model_that_lacks_a_file_is_refused(model: Path, name: str, content: str | None, told: str) -> None:
    (model / name).unlink()
    if content is not None:
        (model / name).write_text(content, encoding="utf-8")
    with pytest.raises(CannotStart, match=told):
        model_files.read(model, "")


def test_a_broken_tokenizer_is_named(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CannotStart, match="cannot be loaded"):
        check_tokenizer(model_files.read(model, ""))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer_config.json", {}, {"normalizes": False, "query_prompt": "", "max_input_tokens": 512}),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "q: ", "passage": "p: "}},
            {"query_prompt": "q: ", "document_prompt": "p: "},
        ),
        ("modules.json", [{"type": "sentence_transformers.models.Transformer"}], {"normalizes": False}),
        ("modules.json", [{"type": "sentence_transformers.models.Normalize"}], {"normalizes": True}),
        (
            "config.json",
            {"matryoshka_dimensions": [8, 2, 4]},
            {"is_matryoshka": True, "matryoshka_dimensions": (2, 4, 8)},
        ),
        ("config.json", {"is_matryoshka": True}, {"is_matryoshka": True}),
        ("config.json", {"model_type": "jina_embeddings_v5"}, {"normalizes": True}),
        ("sentence_bert_config.json", {"max_seq_length": 128}, {"max_input_tokens": 128}),
        ("sentence_roberta_config.json", {"max_seq_length": 128}, {"max_input_tokens": 128}),
        ("sentence_bert_config.json", {"max_seq_length": 600}, {"max_input_tokens": 512}),
        ("sentence_bert_config.json", {"processor_kwargs": {"model_max_length": 64}}, {"max_input_tokens": 64}),
        ("tokenizer_config.json", {"model_max_length": 64}, {"max_input_tokens": 64}),
        ("tokenizer_config.json", {"model_max_length": 1e30}, {"max_input_tokens": 512}),
        (
            "config_sentence_transformers.json",
            {"prompts": {"clustering": "c: "}, "default_prompt_name": "clustering"},
            {"query_prompt": "c: ", "document_prompt": "c: "},
        ),
    ],
)
def test_a_model_is_what_its_files_say(model: Path, name: str, content: Any, said: dict[str, Any]) -> None:
    write(model, name, content)
    files = model_files.read(model, "")
    assert {each: getattr(files, each) for each in said} == said


@pytest.mark.parametrize(
    ("entries", "causal"),
    [
        ({}, True),
        ({"use_bidirectional_attention": "vision"}, True),
        ({"use_bidirectional_attention": True}, False),
        ({"is_causal": False}, False),
    ],
)
def test_a_model_that_attends_in_both_directions_never_generates(
    entries: dict[str, Any], causal: bool, model: Path
) -> None:
    write(model, "config.json", {"architectures": ["Qwen3ForCausalLM"], **entries})
    assert model_files.read(model, "").is_causal is causal


@pytest.mark.parametrize(
    ("config", "sentence", "longest"),
    [
        ({"model_type": "bert"}, {}, 66),
        ({"model_type": "bert"}, {"max_seq_length": 32}, 32),
        ({"model_type": "roberta"}, {}, 64),
        ({"model_type": "roberta", "pad_token_id": 0}, {}, 65),
        ({"model_type": "roberta", "pad_token_id": None}, {}, 64),
        ({"model_type": "xlm-roberta"}, {"max_seq_length": 66}, 64),
        ({"model_type": "camembert"}, {"max_seq_length": 600}, 64),
        ({"model_type": "mpnet"}, {}, 64),
        ({"model_type": "mpnet"}, {"max_seq_length": 20}, 20),
        ({"model_type": "qwen3", "rope_theta": 1e6}, {"max_seq_length": 600}, 600),
        ({"model_type": "qwen3", "rope_theta": 1e6}, {}, 66),
        ({"model_type": "bert", "position_embedding_type": "alibi"}, {"max_seq_length": 600}, 600),
    ],
)
def test_an_input_is_no_longer_than_the_position_rows_for_tokens(
    config: dict[str, Any], sentence: dict[str, Any], longest: int, model: Path
) -> None:
    write(model, "config.json", {"max_position_embeddings": 66, "pad_token_id": 1, **config})
    write(model, "sentence_bert_config.json", sentence)
    assert model_files.read(model, "").max_input_tokens == longest


def test_the_limit_of_sentence_transformers_goes_before_the_tokenizers(model: Path) -> None:
    write(model, "tokenizer_config.json", {"model_max_length": 64})
    write(model, "sentence_bert_config.json", {"max_seq_length": 128})
    assert model_files.read(model, "").max_input_tokens == 128


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("tokenizer_config.json", {"model_max_length": "64"}, 'model_max_length to "64": it must be a number'),
        ("sentence_bert_config.json", {"query_length": 32}, "query_length to 32, which is not applied"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 9}}}, "processing_kwargs"),
        ("sentence_bert_config.json", {"modality_config": {"message": {}}}, "chat template"),
    ],
)
def test_a_tokenization_that_is_not_applied_is_refused(model: Path, name: str, content: Any, told: str) -> None:
    write(model, name, content)
    with pytest.raises(CannotStart, match=told):
        model_files.read(model, "")


def test_an_adapter_that_lowers_texts_is_refused_if_its_model_does_not(model: Path) -> None:
    adapter = model / "adapter"
    adapter.mkdir()
    write(adapter, "adapter_config.json", {})
    model_files.with_adapter(model_files.read(model, ""), adapter, "")
    write(adapter, "sentence_bert_config.json", {"do_lower_case": True})
    with pytest.raises(CannotStart, match="they share a tokenizer"):
        model_files.with_adapter(model_files.read(model, ""), adapter, "")


STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
LOWERCASE = {"type": "Lowercase"}


@pytest.mark.parametrize(
    ("normalizer", "then"),
    [
        (None, [LOWERCASE]),
        (STRIP, [LOWERCASE, STRIP]),
        ({"type": "Sequence", "normalizers": [STRIP]}, [LOWERCASE, STRIP]),
    ],
)
def test_a_model_whose_texts_are_lowered_has_a_tokenizer_that_lowers(
    normalizer: Any, then: list[Any], model: Path
) -> None:
    words = {"[UNK]": 0, "hello": 1, "\u00e9t\u00e9": 2}
    cased = {**json.loads(TOKENIZER), "normalizer": normalizer, "pre_tokenizer": {"type": "Whitespace"}}
    cased["model"] = {**cased["model"], "vocab": words}
    write(model, "tokenizer.json", cased)
    before = model_files.read(model, "")
    write(model, "sentence_bert_config.json", {"do_lower_case": True})
    files = model_files.read(model, "")
    content = json.loads(files.tokenizer["tokenizer.json"])
    assert content["normalizer"]["normalizers"] == then
    for read, ids in ((before, [0, 0]), (files, [1, 2])):
        assert Tokenizer.from_buffer(read.tokenizer["tokenizer.json"]).encode("HELLO \u00c9T\u00c9").ids == ids
    assert files.fingerprint == tokenizer_fingerprint(files.tokenizer) != before.fingerprint


@pytest.mark.parametrize("normalizer", [LOWERCASE, {"type": "Sequence", "normalizers": [STRIP, LOWERCASE]}])
def test_a_tokenizer_that_lowers_stays_as_it_is(normalizer: Any, model: Path) -> None:
    write(model, "tokenizer.json", {**json.loads(TOKENIZER), "normalizer": normalizer})
    write(model, "sentence_bert_config.json", {"do_lower_case": True})
    assert model_files.read(model, "").tokenizer["tokenizer.json"] == (model / "tokenizer.json").read_bytes()


def test_the_fingerprint_covers_every_tokenizer_file(model: Path) -> None:
    before = model_files.read(model, "")
    assert before.fingerprint == tokenizer_fingerprint(before.tokenizer)
    write(model, "tokenizer_config.json", {"do_lower_case": True})
    assert model_files.read(model, "").fingerprint != before.fingerprint


def test_the_revision_follows_from_configuration_and_weights(model: Path) -> None:
    before = model_files.read(model, "").revision
    assert model_files.read(model, "").revision == before
    weights = bytearray((model / "model.safetensors").read_bytes())
    middle = len(weights) // 2
    weights[middle : middle + 4] = b"????"
    (model / "model.safetensors").write_bytes(weights)
    retrained = model_files.read(model, "").revision
    assert retrained != before, "weights of the same size, trained again"
    write(model, "config.json", {"vocab_size": 101})
    assert model_files.read(model, "").revision not in (before, retrained)


def test_the_fingerprint_digests_names_sizes_and_contents_in_name_order() -> None:
    expected = hashlib.sha256(b"a.json\0002\000{}tokenizer.json\0003\000abc").hexdigest()
    assert tokenizer_fingerprint({"tokenizer.json": b"abc", "a.json": b"{}"}) == expected
