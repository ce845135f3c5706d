"""How a model scores texts and pairs: every key of its files that changes a score is known, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from modelserver.engines.engine import Activation, Scoring, Task
from modelserver.engines.pooling import check_transformer, read_config, read_listed
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles, read_json
from modelserver.settings import ModelServerSettings
from modelserver.tokenizer_check import joins_with_token_types, served_tokenizer

_ACTIVATIONS: Mapping[str, Activation] = {
    "Identity": Activation.IDENTITY,
    "Sigmoid": Activation.SIGMOID,
    "Softmax": Activation.SOFTMAX,
}
"""The activations by their names in torch.nn, as sentence-transformers has them."""
_PROBLEMS: Mapping[Any, Activation] = {
    None: Activation.SOFTMAX,
    "single_label_classification": Activation.SOFTMAX,
    "multi_label_classification": Activation.SIGMOID,
    "regression": Activation.IDENTITY,
}
"""transformers' `problem_type` of a model with several labels."""
_DEFAULT_LABELS = 2
"""The labels that transformers assumes where a config.json names none."""
_QWEN3_RERANKER = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: {query}
<Document>: {document}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
"""The template published with Qwen3-Reranker, whose files do not hold it."""


def scoring_of(settings: ModelServerSettings, files: ModelFiles, task: Task | None) -> Scoring:
    """How a model scores that is served for this task, or for the one of its files. Raises CannotStart."""
    if task is None:
        return read_scoring(files)
    if settings.engine.kind == "synthetic":
        return synthetic_scoring(files, task)
    if not files.classifies and not (files.is_causal and task is Task.RANK):
        raise CannotStart(
            f"{files.path} has no classifier (…ForSequenceClassification): it cannot {task}; set model.task to auto"
        )
    scoring = read_scoring(files)
    if scoring.task is not task:
        raise CannotStart(
            f"model.task is {task}, and the labels of {files.path} are {', '.join(scoring.labels)}: a model with one"
            f" ranks, with several it classifies; set model.task to {scoring.task}"
        )
    return scoring


def read_scoring(files: ModelFiles) -> Scoring:
    """How the model in these files scores. Raises CannotStart for a score that is not computed here."""
    config = read_json(files.path / "config.json")
    _check_modules(files)
    if files.is_causal:
        return _of_answers(files, config)
    labels, activation = _labels(config), _named_activation(files, config)
    if len(labels) > 1:
        activation = activation or _of_problem(files, config)
    elif activation is Activation.SOFTMAX:
        raise CannotStart(f"{files.path} has the activation Softmax and one label, whose score would always be 1")
    token_types = _token_types(files, config)
    return Scoring(labels, activation or Activation.SIGMOID, token_types=token_types)


def synthetic_scoring(files: ModelFiles, task: Task) -> Scoring:
    """How the synthetic engine scores for a task, whatever the model: with its labels if it has several."""
    config = read_json(files.path / "config.json")
    labels = ("",) if task is Task.RANK else _labels(config)
    if task is Task.CLASSIFY and len(labels) == 1:
        labels = _labels({})
    return Scoring(labels, Activation.SIGMOID, token_types=_token_types(files, config))


def _of_answers(files: ModelFiles, config: Mapping[str, Any]) -> Scoring:
    """A decoder that is asked whether a document answers a query: by the logits of *yes* and *no* after the pair."""
    if config.get("model_type") != "qwen3":
        raise CannotStart(
            f"{files.path} is a {config.get('model_type')} without a classifier: of decoders that answer yes or no,"
            " only Qwen3-Reranker's template for a query and a document is known"
        )
    activation = _named_activation(files, config) or Activation.SIGMOID
    listed = read_listed(files.path)
    if listed is None:
        return Scoring(("",), activation, template=_QWEN3_RERANKER, answers=_tokens_of(files, ("no", "yes")))
    folder = files.path / str(listed[1].get("path", ""))
    module = read_config(folder, ("true_token_id", "false_token_id", "module_input_name"))
    if module.get("false_token_id") is None or module.get("module_input_name", "causal_logits") != "causal_logits":
        raise CannotStart(
            f"{folder} does not score by the logits of a true and a false token: nothing else is computed"
        )
    answers = _tokens_of(files, (module["false_token_id"], module.get("true_token_id", "yes")))
    return Scoring(("",), activation, answers=answers)


def _check_modules(files: ModelFiles) -> None:
    listed = read_listed(files.path)
    kinds = [str(module.get("type", "")) for module in listed or ()]
    wanted = ("Transformer", "LogitScore") if files.is_causal else ("Transformer",)
    saved = all(kind.startswith("sentence_transformers.") for kind in kinds)
    if listed is not None and (not saved or tuple(kind.rpartition(".")[2] for kind in kinds) != wanted):
        raise CannotStart(
            f"{files.path / 'modules.json'} lists {', '.join(kinds)}: of a model that scores by"
            f" {'its answers' if files.is_causal else 'a classifier'}, sentence-transformers' {' and '.join(wanted)} is"
            " computed"
        )
    check_transformer(files.path, "text-generation" if files.is_causal else "sequence-classification")


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label")
    if isinstance(named, dict) and named:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    return tuple(f"LABEL_{number}" for number in range(int(config.get("num_labels") or _DEFAULT_LABELS)))


def _named_activation(files: ModelFiles, config: Mapping[str, Any]) -> Activation | None:
    """The activation that sentence-transformers saved: where it does today, since version 4, and before."""
    whole = read_json(files.path / "config_sentence_transformers.json") or {}
    saved = config.get("sentence_transformers") or {}
    older = saved.get("activation_fn", config.get("sbert_ce_default_activation_function"))
    name = older if whole.get("activation_fn") is None else whole["activation_fn"]
    if name is None:
        return None
    known = _ACTIVATIONS.get(str(name).rpartition(".")[2])
    if known is None or not str(name).startswith("torch.nn."):
        raise CannotStart(
            f"{files.path} has the activation {name}: those of torch.nn that are computed are {', '.join(_ACTIVATIONS)}"
        )
    return known


def _of_problem(files: ModelFiles, config: Mapping[str, Any]) -> Activation:
    problem = config.get("problem_type")
    if problem not in _PROBLEMS:
        raise CannotStart(
            f"config.json in {files.path} sets problem_type to {json.dumps(problem)}: transformers knows"
            f" {', '.join(filter(None, _PROBLEMS))}"
        )
    return _PROBLEMS[problem]


def _token_types(files: ModelFiles, config: Mapping[str, Any]) -> bool:
    """Whether the model tells the second text of a pair by its tokens' type, and its tokenizer gives them one."""
    return int(config.get("type_vocab_size") or 0) > 1 and joins_with_token_types(files)


def _tokens_of(files: ModelFiles, wanted: Sequence[int | str]) -> tuple[str, ...]:
    """The tokens of these ids or words. Raises CannotStart for an id or a word that the tokenizer does not have."""
    tokenizer, found = served_tokenizer(files), list[str]()
    for each in wanted:
        token = tokenizer.id_to_token(each) if isinstance(each, int) else each
        if token is None or tokenizer.token_to_id(token) is None:
            raise CannotStart(
                f"the tokenizer of {files.path} has no token {json.dumps(each)}, by which the model scores"
            )
        found.append(token)
    return tuple(found)
