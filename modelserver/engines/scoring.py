"""How a classifier scores texts and pairs, by its files: every key that changes a score is known, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from modelserver.engines.engine import Activation, Matrix, Scoring, Task
from modelserver.errors import CannotStart
from modelserver.model_files import ModelFiles, read_json
from modelserver.tokenizer_check import joins_with_token_types

_ACTIVATIONS: Mapping[str, Activation] = {
    "Identity": Activation.IDENTITY,
    "Sigmoid": Activation.SIGMOID,
    "Softmax": Activation.SOFTMAX,
}
"""Of torch.nn, as sentence-transformers names them."""
_PROBLEMS: Mapping[Any, Activation] = {
    None: Activation.SOFTMAX,
    "single_label_classification": Activation.SOFTMAX,
    "multi_label_classification": Activation.SIGMOID,
    "regression": Activation.IDENTITY,
}
"""transformers' `problem_type` of a model with several labels."""
_DEFAULT_LABELS = 2
"""As transformers reads a config.json that names none."""


def read_scoring(files: ModelFiles) -> Scoring:
    """How the classifier in these files scores. Raises CannotStart for what is not computed."""
    file = files.path / "config.json"
    config = read_json(file)
    labels = _labels(config)
    if len(labels) == 1:
        activation = _named_activation(config, str(file)) or Activation.SIGMOID
        if activation is Activation.SOFTMAX:
            raise CannotStart(f"{file} has the activation Softmax and one label, whose score would always be 1")
    else:
        activation = _named_activation(config, str(file)) or _of_problem(config, str(file))
    return Scoring(labels, activation, token_types=_token_types(files, config))


def of_any(files: ModelFiles, task: Task) -> Scoring:
    """How the synthetic engine scores for a task, whatever the model: by the files' labels where they fit."""
    config = read_json(files.path / "config.json")
    labels = ("",) if task is Task.RANK else _labels(config)
    if task is Task.CLASSIFY and len(labels) == 1:
        labels = _labels({})
    return Scoring(labels, Activation.SIGMOID, token_types=_token_types(files, config))


def activated(logits: Matrix, activation: Activation) -> Matrix:
    """Scores float32 [queries, labels] of logits of the same shape."""
    if activation is Activation.IDENTITY:
        return logits
    if activation is Activation.SIGMOID:
        return np.asarray(np.exp(-np.logaddexp(np.float32(0.0), -logits)), np.float32)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label")
    if isinstance(named, dict) and named:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    return tuple(f"LABEL_{number}" for number in range(int(config.get("num_labels") or _DEFAULT_LABELS)))


def _named_activation(config: Mapping[str, Any], file: str) -> Activation | None:
    """The one that sentence-transformers saved, under its key of today or of before version 4."""
    saved = config.get("sentence_transformers") or {}
    name = saved.get("activation_fn", config.get("sbert_ce_default_activation_function"))
    if name is None:
        return None
    known = _ACTIVATIONS.get(str(name).rpartition(".")[2])
    if known is None or not str(name).startswith("torch.nn."):
        raise CannotStart(
            f"{file} has the activation {name}: those of torch.nn that are computed are {', '.join(_ACTIVATIONS)}"
        )
    return known


def _of_problem(config: Mapping[str, Any], file: str) -> Activation:
    problem = config.get("problem_type")
    if problem not in _PROBLEMS:
        raise CannotStart(
            f"{file} sets problem_type to {json.dumps(problem)}: transformers knows"
            f" {', '.join(filter(None, _PROBLEMS))}"
        )
    return _PROBLEMS[problem]


def _token_types(files: ModelFiles, config: Mapping[str, Any]) -> bool:
    """Whether the model tells the second text of a pair by its tokens' type, and its tokenizer gives them one."""
    return int(config.get("type_vocab_size") or 0) > 1 and joins_with_token_types(files)
