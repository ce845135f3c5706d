"""What a model's own files say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modelserver import model_files
from modelserver.errors import CannotStart
from protos.modelserver.v1.fingerprint import tokenizer_fingerprint

TOKENIZER = json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write(folder, "config.json", {"vocab_size": 100, "hidden_size": 8, "max_position_embeddings": 512})
    (folder / "tokenizer.json").write_text(TOKENIZER, encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    return folder


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def test_the_default_model_is_the_minilm_of_its_wheel() -> None:
    files = model_files.read(model_files.locate("", ""), "")
    assert (files.vocabulary_size, files.hidden_size, files.max_input_tokens) == (30522, 384, 256)
    assert files.normalizes
    assert files.revision.startswith("sha256:")
    model_files.check_tokenizer(files)


def test_a_model_folder_is_taken_as_it_stands(model: Path) -> None:
    assert model_files.locate(str(model), "") == model


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="no model folder"):
        model_files.locate(str(tmp_path / "nowhere"), "")


def test_without_a_default_model_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "DEFAULT_MODEL_WHEEL", "no_such_wheel")
    with pytest.raises(CannotStart, match="MODEL__PATH"):
        model_files.locate("", "")


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


def test_a_hub_name_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(CannotStart, match="owner/name is neither a local folder nor available from the hub: offline"):
        model_files.locate("owner/name", "")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"holds no config\.json"):
        model_files.read(tmp_path, "")


def test_a_model_without_a_fast_tokenizer_is_refused_with_what_to_do(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(CannotStart, match="save_pretrained"):
        model_files.read(model, "")


def test_a_broken_configuration_is_named(model: Path) -> None:
    (model / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CannotStart, match=r"config\.json is not valid JSON"):
        model_files.read(model, "")


def test_a_broken_tokenizer_is_named(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CannotStart, match="cannot be loaded"):
        model_files.check_tokenizer(model_files.read(model, ""))


def test_without_sentence_transformers_files_nothing_is_asked_for(model: Path) -> None:
    files = model_files.read(model, "")
    assert not files.normalizes
    assert (files.query_prompt, files.document_prompt) == ("", "")
    assert (files.is_matryoshka, files.matryoshka_dimensions) == (False, ())
    assert files.max_input_tokens == 512
    assert list(files.tokenizer) == ["tokenizer.json"]


def test_prompts_are_found_under_the_names_that_models_use(model: Path) -> None:
    write(model, "config_sentence_transformers.json", {"prompts": {"query": "q: ", "passage": "p: "}})
    files = model_files.read(model, "")
    assert (files.query_prompt, files.document_prompt) == ("q: ", "p: ")


def test_a_normalising_module_asks_for_unit_vectors(model: Path) -> None:
    write(model, "modules.json", [{"type": "sentence_transformers.models.Transformer"}])
    assert not model_files.read(model, "").normalizes
    write(model, "modules.json", [{"type": "sentence_transformers.models.Normalize"}])
    assert model_files.read(model, "").normalizes


def test_matryoshka_dimensions_come_from_the_configuration(model: Path) -> None:
    write(model, "config.json", {"matryoshka_dimensions": [8, 2, 4]})
    files = model_files.read(model, "")
    assert (files.is_matryoshka, files.matryoshka_dimensions) == (True, (2, 4, 8))
    write(model, "config.json", {"is_matryoshka": True})
    assert model_files.read(model, "").is_matryoshka


def test_sentence_transformers_own_limit_goes_before_the_positions(model: Path) -> None:
    write(model, "sentence_bert_config.json", {"max_seq_length": 128})
    assert model_files.read(model, "").max_input_tokens == 128


def test_the_fingerprint_covers_every_tokenizer_file(model: Path) -> None:
    before = model_files.read(model, "")
    assert before.fingerprint == tokenizer_fingerprint(before.tokenizer)
    write(model, "tokenizer_config.json", {"do_lower_case": True})
    assert model_files.read(model, "").fingerprint != before.fingerprint


def test_a_revision_that_is_set_is_taken(model: Path) -> None:
    assert model_files.read(model, "v3").revision == "v3"


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
