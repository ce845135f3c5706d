"""How good a side's embeddings are, beside those of sentence-transformers in float32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from loadtest.bench.figures import Figure
from loadtest.bench.peers import fastapi
from loadtest.bench.setting import Plan, texts
from loadtest.bench.sides import OpenAI, Side
from loadtest.bench.turns import Medians

_QUESTIONS, _ASKED, _NEAREST = 3000, 500, 10


def quality(bench: str, plan: Plan, sides: Mapping[str, Side]) -> list[Figure]:
    """Mean cosine; and for 500 questions asked of all others, the share of the ten nearest that are the same."""
    questions = texts(round(_QUESTIONS * min(1.0, plan.turn_share)))
    with fastapi(plan.folder, "float32") as exact:
        wanted = _normalized(OpenAI(exact).embeddings(questions))
    nearest = _nearest(wanted)
    medians = Medians(bench, 1, f"beside float32, {len(questions)} questions, of which {len(nearest)} are asked")
    figures: list[Figure] = []
    for name, side in sides.items():
        found = _normalized(side.embeddings(questions))
        same = [len(set(one) & set(other)) / _NEAREST for one, other in zip(_nearest(found), nearest, strict=True)]
        cosine = float(np.mean(np.sum(found * wanted, axis=1)))
        figures += [
            medians.of(f"{name}_cosine", "cosine", [cosine]),
            medians.of(f"{name}_same_nearest", "share", [float(np.mean(same))]),
        ]
    return figures


def _nearest(embeddings: NDArray[np.float32]) -> list[list[int]]:
    """Of each question that is asked the ten others that are nearest to it."""
    scores = embeddings[:_ASKED] @ embeddings.T
    np.fill_diagonal(scores, -np.inf)
    rows: list[list[int]] = np.argsort(-scores, axis=1)[:, :_NEAREST].tolist()
    return rows


def _normalized(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / lengths
