"""How a model scores follows from its files; what they ask for beyond that is refused in a sentence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from modelserver import model_files
from modelserver.engines.engine import Activation, Scoring, Task
from modelserver.errors import CannotStart
from modelserver.modes import tasks_of
from modelserver.registry import ENGINE_WINGS, MODES
from modelserver.settings import EngineSettings, ModelServerSettings, ModelSettings
from modelserver.wings.scores.scoring import read_scoring
from tests.support.model_folder import change, write

CLASSIFIER = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
NLI = {**CLASSIFIER, "id2label": {"10": "entailment", "2": "neutral", "1": "contradiction"}}
DECODER = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "type_vocab_size": 0}
SAVED = "sentence_transformers.base.modules.transformer.Transformer"
LOGIT_SCORE = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MiniLM's tokenizer and config.json, without modules."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_files.locate("", "") / name, tmp_path / name)
    return tmp_path


def scoring(folder: Path, **config: Any) -> Scoring:
    change(folder, "config.json", **config)
    return read_scoring(model_files.read(folder, ""))


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [
        {"idx": place, "name": str(place), "path": f"{place}_{kind.rpartition('.')[2]}" if place else "", "type": kind}
        for place, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        (CLASSIFIER, Activation.SIGMOID),
        ({**CLASSIFIER, "problem_type": "regression"}, Activation.SIGMOID),
        ({**CLASSIFIER, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({**CLASSIFIER, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        (NLI, Activation.SOFTMAX),
        ({**NLI, "problem_type": "multi_label_classification"}, Activation.SIGMOID),
        ({**NLI, "problem_type": "regression"}, Activation.IDENTITY),
        ({**NLI, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
    ],
)
def test_the_activation_is_the_files(folder: Path, config: dict[str, Any], activation: str) -> None:
    assert scoring(folder, **config).activation == activation


def test_what_the_newest_layout_says_of_the_activation_wins(folder: Path) -> None:
    write(folder, "config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.linear.Identity"})
    old = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    assert scoring(folder, **CLASSIFIER, sentence_transformers=old).activation is Activation.IDENTITY


def test_labels_are_in_the_order_of_their_numbers(folder: Path) -> None:
    found = scoring(folder, **NLI)
    assert found.labels == ("contradiction", "neutral", "entailment")
    assert found.task is Task.CLASSIFY


def test_files_without_labels_have_the_two_of_transformers(folder: Path) -> None:
    assert scoring(folder, architectures=CLASSIFIER["architectures"]).labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("types", "names", "told"),
    [(2, None, True), (1, None, False), (2, ["input_ids", "attention_mask"], False), (2, ["token_type_ids"], True)],
)
def test_token_types_need_a_model_and_a_tokenizer_that_have_them(
    folder: Path, types: int, names: list[str] | None, *, told: bool
) -> None:
    if names is not None:
        change(folder, "tokenizer_config.json", model_input_names=names)
    assert scoring(folder, **CLASSIFIER, type_vocab_size=types).token_types is told


def test_a_decoder_is_asked_by_the_published_template(folder: Path) -> None:
    found = scoring(folder, **DECODER)
    assert found.answers == ("no", "yes")
    assert found.template.count("{query}") == found.template.count("{document}") == 1
    assert found.task is Task.RANK


def test_a_saved_decoder_says_itself_which_tokens_answer(folder: Path) -> None:
    write(folder, "modules.json", modules(SAVED, LOGIT_SCORE))
    write(folder, "1_LogitScore/config.json", {"true_token_id": 2995, "false_token_id": 6270})
    found = scoring(folder, **DECODER)
    assert (found.answers, found.template) == (("false", "true"), "")


@pytest.mark.parametrize(
    ("file", "entries", "said"),
    [
        (
            "config.json",
            {"sentence_transformers": {"activation_fn": "torch.nn.ReLU"}},
            "has the activation torch.nn.ReLU",
        ),
        ("config.json", {"sentence_transformers": {"activation_fn": "own.Sigmoid"}}, "has the activation own.Sigmoid"),
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.Softmax"}}, "would always be 1"),
        ("config.json", {**NLI, "problem_type": "ordinal"}, 'sets problem_type to "ordinal"'),
        ("modules.json", modules(SAVED, "sentence_transformers.models.Dense"), "sentence-transformers' Transformer is"),
        ("modules.json", modules("their.Transformer"), "lists their.Transformer"),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "sets transformer_task"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "it does not give scores"),
        ("config_sentence_transformers.json", {"default_prompt_name": "web"}, "no prompt is put before a pair"),
        ("config.json", {**DECODER, "model_type": "llama"}, "only Qwen3-Reranker's template"),
    ],
)
def test_what_is_not_computed_is_refused(folder: Path, file: str, entries: Any, said: str) -> None:
    change(folder, "config.json", **CLASSIFIER)
    if isinstance(entries, dict):
        change(folder, file, **entries)
    else:
        write(folder, file, entries)
    with pytest.raises(CannotStart, match=said):
        read_scoring(model_files.read(folder, ""))


@pytest.mark.parametrize(
    ("config", "module", "said"),
    [
        (DECODER, {"true_token_id": 5}, "a true and a false token"),
        (DECODER, {"true_token_id": 5, "false_token_id": 10**6}, "has no token 1000000"),
        (DECODER, {"true_token_id": 5, "false_token_id": 6, "scale": 2}, "sets scale to 2"),
    ],
)
def test_answers_that_are_not_computed_are_refused(folder: Path, config: Any, module: Any, said: str) -> None:
    write(folder, "modules.json", modules(SAVED, LOGIT_SCORE))
    write(folder, "1_LogitScore/config.json", module)
    with pytest.raises(CannotStart, match=said):
        scoring(folder, **config)


@pytest.mark.parametrize(
    ("config", "asked", "task"),
    [
        (CLASSIFIER, "auto", Task.RANK),
        (NLI, "auto", Task.CLASSIFY),
        (CLASSIFIER, "rank", Task.RANK),
        (DECODER, "rank", Task.RANK),
    ],
)
def test_a_task_is_found_in_the_files(folder: Path, config: Any, asked: Any, task: Task) -> None:
    assert tasks(folder, config, asked) == {task}


@pytest.mark.parametrize(
    ("config", "asked", "said"),
    [
        (NLI, "rank", "set model.task to classify"),
        (CLASSIFIER, "classify", "set model.task to rank"),
        ({}, "rank", "has no classifier"),
        (DECODER, "classify", "has no classifier"),
    ],
)
def test_a_task_that_the_files_do_not_allow_is_refused(folder: Path, config: Any, asked: Any, said: str) -> None:
    with pytest.raises(CannotStart, match=said):
        tasks(folder, config, asked)


def tasks(folder: Path, config: dict[str, Any], asked: Any) -> frozenset[Task]:
    change(folder, "config.json", **config)
    settings = ModelServerSettings(model=ModelSettings(task=asked), engine=EngineSettings(kind="core"))
    return tasks_of(settings, model_files.read(folder, ""), MODES, ENGINE_WINGS.scoring_of)
