"""A model that generates embeds as its files, or those of its adapter, say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelserver.engines.engine import Task
from modelserver.engines.pooling import Pooling
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles, read, with_adapter
from modelserver.modes import tasks_of
from modelserver.registry import ENGINE_WINGS, MODES
from modelserver.settings import ModelServerSettings, ModelSettings
from modelserver.wings.both.embedding import Embedding, read_embedding
from modelserver.wings.both.generator import EMBED_AND_GENERATE
from tests.support.model_folder import write
from tests.support.sentence_folder import causal, pooled

DENSE = {"in_features": 8, "out_features": 4, "activation_function": "torch.nn.modules.activation.Tanh"}


def tasks(files: ModelFiles, task: Any = "auto", adapter: str = "") -> frozenset[Task]:
    return tasks_of(
        ModelServerSettings(model=ModelSettings(task=task, adapter=adapter)), files, MODES, ENGINE_WINGS.scoring_of
    )


@pytest.mark.parametrize(
    ("mode", "pooling"),
    [
        ("pooling_mode_lasttoken", Pooling.LAST),
        ("pooling_mode_mean_tokens", Pooling.MEAN),
        ("pooling_mode_cls_token", Pooling.CLS),
    ],
)
def test_a_model_that_generates_pools_as_its_files_say(tmp_path: Path, mode: str, pooling: Pooling) -> None:
    pooled(tmp_path, **{mode: True})
    assert read_embedding(tmp_path, None) == Embedding(pooling)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"pooling_mode": "max"}, "pools by max;"),
        ({"pooling_mode": ["mean", "cls"]}, "pools by mean and cls;"),
        ({"pooling_mode": "mean", "include_prompt": False}, "without the prompt's tokens"),
    ],
)
def test_a_model_that_generates_pools_by_one_of_three(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    pooled(tmp_path, **config)
    with pytest.raises(CannotStart, match=f"{says}.*set model.task to embed"):
        read_embedding(tmp_path, None)


def test_a_model_that_generates_has_no_module_after_its_pooling(tmp_path: Path) -> None:
    pooled(tmp_path, "Dense")
    write(tmp_path, "2_Dense/config.json", DENSE)
    with pytest.raises(CannotStart, match=r"has a Dense module.*set model.task to embed"):
        read_embedding(tmp_path, None)


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
    assert tasks(both, adapter=str(adapter)) == EMBED_AND_GENERATE


@pytest.mark.parametrize("config", [{"peft_type": "LORA", "r": 1024}, {"peft_type": "IA3", "r": 8}, {}])
def test_what_is_no_usable_adapter_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    write(tmp_path, "adapter_config.json", config)
    with pytest.raises(CannotStart, match="is not a LoRA adapter of a rank up to 512"):
        read_embedding(tmp_path, tmp_path)


def test_auto_serves_what_the_files_speak_of(tmp_path: Path) -> None:
    assert tasks(causal(tmp_path)) == {Task.GENERATE}
    pooled(tmp_path, pooling_mode_lasttoken=True)
    assert tasks(causal(tmp_path)) == EMBED_AND_GENERATE
    (tmp_path / "generation_config.json").unlink()
    assert tasks(causal(tmp_path, generation_config=False)) == {Task.EMBED}


def test_auto_only_embeds_what_a_generating_engine_cannot_pool(tmp_path: Path) -> None:
    pooled(tmp_path, pooling_mode_max_tokens=True)
    files = causal(tmp_path)
    assert tasks(files) == {Task.EMBED}
    with pytest.raises(CannotStart, match="pools by max"):
        tasks(files, "both")


def test_a_model_that_cannot_generate_is_not_served_for_both(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"architectures": ["BertModel"], "vocab_size": 9, "hidden_size": 8})
    write(tmp_path, "tokenizer.json", {})
    with pytest.raises(CannotStart, match="not a causal language model"):
        tasks(read(tmp_path, "r"), "both")
