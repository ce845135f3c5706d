"""Make a cross-encoder of the bundled MiniLM: `python -m loadtest.texts.fit_ranker FOLDER`.

MiniLM's own layers read two questions as one sequence, and a linear layer on the first token's hidden state gives the
score: fitted by ridge regression to the cosines of MiniLM's vectors of a thousand pairs. It shows how pairs are
ranked, and no more: a published cross-encoder learns from judgements. A program of its own: it loads torch and
transformers, and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoTokenizer, BertForSequenceClassification

from loadtest.questions import bundled_questions
from loadtest.stack.instant_modelserver import tokenizer_folder

_QUESTIONS = 600
_NEAR = 10
_AT_ONCE = 32
_RIDGE = 10.0
"""Of squared weights: of 384 features of 1,800 pairs, it gave the highest correlation for pairs that were held out."""

Features = npt.NDArray[np.float32]


def make(folder: Path) -> None:
    """Write it as Hugging Face has models; its score is a fitted cosine."""
    files = tokenizer_folder()
    tokenizer: Any = AutoTokenizer.from_pretrained(files)
    model: Any = BertForSequenceClassification.from_pretrained(files, num_labels=1).float().eval()
    firsts, seconds, cosines = _pairs(model, tokenizer)
    features = np.tanh(_hidden(model, tokenizer, firsts, seconds)[0])
    means = features.mean(0)
    centred = features - means
    squares = centred.T @ centred + _RIDGE * np.eye(centred.shape[1])
    weights = np.linalg.solve(squares, centred.T @ (cosines - cosines.mean()))
    with torch.no_grad():
        model.bert.pooler.dense.weight.copy_(torch.eye(centred.shape[1]))
        model.bert.pooler.dense.bias.zero_()
        model.classifier.weight.copy_(torch.from_numpy(weights)[None])
        model.classifier.bias.fill_(float(cosines.mean() - means @ weights))
    model.config.sbert_ce_default_activation_function = "torch.nn.modules.linear.Identity"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _pairs(model: Any, tokenizer: Any) -> tuple[list[str], list[str], Features]:
    """Each question with its nearest, with one that is near and with any other one, and the cosine of each pair."""
    questions = sorted(bundled_questions()[:_QUESTIONS], key=len)  # batches hold little padding
    vectors = _hidden(model, tokenizer, questions, None)[1]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1.0)
    near = np.argsort(-cosines)[:, :_NEAR]
    rng = np.random.default_rng(0)
    rows = np.arange(len(questions))
    others = (rows + rng.integers(1, len(questions), len(questions))) % len(questions)
    places = np.stack([near[:, 0], near[rows, rng.integers(1, _NEAR, len(rows))], others], 1).ravel()
    rows = rows.repeat(3)
    return [questions[row] for row in rows], [questions[place] for place in places], cosines[rows, places]


def _hidden(model: Any, tokenizer: Any, firsts: Sequence[str], seconds: Sequence[str] | None) -> tuple[Features, ...]:
    """The last hidden states of each sequence: that of its first token, and the mean; float32 [sequences, hidden]."""
    first_tokens: list[torch.Tensor] = []
    averages: list[torch.Tensor] = []
    for at in range(0, len(firsts), _AT_ONCE):
        pairs = (firsts[at : at + _AT_ONCE], *([seconds[at : at + _AT_ONCE]] if seconds else []))
        inputs = tokenizer(*pairs, padding=True, return_tensors="pt")
        with torch.inference_mode():
            hidden = model.bert(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None]
        first_tokens.append(hidden[:, 0])
        averages.append((hidden * mask).sum(1) / mask.sum(1))
    return torch.cat(first_tokens).numpy(), torch.cat(averages).numpy()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
