"""How a model that generates embeds as well: read from its files, or refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modelserver.engines.choice import tasks_of
from modelserver.engines.engine import Task
from modelserver.engines.pooling import Embedding, Pooling, read_embedding, read_pooling
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles, read, with_adapter
from modelserver.settings import ModelServerSettings, ModelSettings

BOTH = frozenset(Task)


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def modules(*kinds: str) -> list[dict[str, str]]:
    paths = {"Pooling": "1_Pooling", "Dense": "2_Dense"}
    return [{"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, "")} for kind in kinds]


def pooled(folder: Path, **modes: bool) -> None:
    write(folder, "modules.json", modules("Transformer", "Pooling", "Normalize"))
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 8, **modes})


def causal(folder: Path, *, generation_config: bool = True) -> ModelFiles:
    write(folder, "config.json", {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 9, "hidden_size": 8})
    write(folder, "tokenizer.json", {})
    if generation_config:
        write(folder, "generation_config.json", {})
    return read(folder, "r")


def tasks(files: ModelFiles, task: Any = "auto", adapter: str = "") -> frozenset[Task]:
    return tasks_of(ModelServerSettings(model=ModelSettings(task=task, adapter=adapter)), files)


@pytest.mark.parametrize(
    ("mode", "pooling"),
    [
        ("pooling_mode_lasttoken", Pooling.LAST),
        ("pooling_mode_mean_tokens", Pooling.MEAN),
        ("pooling_mode_cls_token", Pooling.CLS),
    ],
)
def test_pooling_is_as_the_files_say(tmp_path: Path, mode: str, pooling: Pooling) -> None:
    pooled(tmp_path, **{mode: True, "pooling_mode_max_tokens": False})
    assert read_pooling(tmp_path) is pooling


@pytest.mark.parametrize(
    ("modes", "says"),
    [
        ({"pooling_mode_max_tokens": True}, "pools by pooling_mode_max_tokens;"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "pooling_mode_mean_tokens, pooling_mode"),
        ({}, "pools by none"),
        ({"pooling_mode_mean_tokens": True, "include_prompt": False}, "without the prompt's tokens"),
    ],
)
def test_other_poolings_are_refused(tmp_path: Path, modes: dict[str, bool], says: str) -> None:
    pooled(tmp_path, **modes)
    with pytest.raises(CannotStart, match=says):
        read_pooling(tmp_path)


def test_a_module_after_pooling_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "modules.json", modules("Transformer", "Pooling", "Dense"))
    with pytest.raises(CannotStart, match=r"has a Dense module.*set model.task to embed"):
        read_pooling(tmp_path)


def test_an_adapter_brings_its_own_pooling_prompts_and_revision(tmp_path: Path) -> None:
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    files = causal(model)
    pooled(model, pooling_mode_mean_tokens=True)
    pooled(adapter, pooling_mode_cls_token=True)
    write(adapter, "adapter_config.json", {"peft_type": "LORA", "r": 20})
    write(adapter, "config_sentence_transformers.json", {"prompts": {"query": "Q: ", "document": "D: "}})
    assert read_embedding(model, adapter) == Embedding(Pooling.CLS, adapter, 32)
    both = with_adapter(files, adapter, "")
    assert (both.query_prompt, both.document_prompt, both.normalizes) == ("Q: ", "D: ", True)
    assert both.revision.startswith("r+")
    assert with_adapter(files, adapter, "named").revision == "named"
    assert tasks(both, adapter=str(adapter)) == BOTH


@pytest.mark.parametrize("config", [{"peft_type": "LORA", "r": 1024}, {"peft_type": "IA3", "r": 8}, {}])
def test_what_is_no_usable_adapter_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    write(tmp_path, "adapter_config.json", config)
    with pytest.raises(CannotStart, match="is not a LoRA adapter of a rank up to 512"):
        read_embedding(tmp_path, tmp_path)


def test_auto_serves_what_the_files_speak_of(tmp_path: Path) -> None:
    assert tasks(causal(tmp_path)) == {Task.GENERATE}
    pooled(tmp_path, pooling_mode_lasttoken=True)
    assert tasks(causal(tmp_path)) == BOTH
    (tmp_path / "generation_config.json").unlink()
    assert tasks(causal(tmp_path, generation_config=False)) == {Task.EMBED}


def test_auto_only_embeds_what_cannot_be_pooled_from_an_engine_that_generates(tmp_path: Path) -> None:
    pooled(tmp_path, pooling_mode_max_tokens=True)
    files = causal(tmp_path)
    assert tasks(files) == {Task.EMBED}
    with pytest.raises(CannotStart, match="pooling_mode_max_tokens"):
        tasks(files, "both")


def test_a_model_that_cannot_generate_is_not_served_for_both(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"architectures": ["BertModel"], "vocab_size": 9, "hidden_size": 8})
    write(tmp_path, "tokenizer.json", {})
    with pytest.raises(CannotStart, match="not a causal language model"):
        tasks(read(tmp_path, "r"), "both")
