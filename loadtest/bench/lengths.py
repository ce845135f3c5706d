"""Steps of equal sums of tokens in queries of unequal lengths: what budgets in tokens rest on."""

from __future__ import annotations

from loadtest.bench.figures import Figure
from loadtest.bench.gpu.engines import DIRECT, V2, measured
from loadtest.bench.gpu.models import MINILM, model_folder
from loadtest.bench.setting import Plan
from loadtest.stack.errors import StackError

NAME = "lengths"
_TOKENS = 600
_MODELS = ((MINILM, DIRECT, "≤ 1.2"), ("mpnet", V2, ""))
"""The second is of a family that transformers computes, in batches that are padded to the longest query."""


def measure(plan: Plan) -> list[Figure]:
    """By the engine alone, each model once. Raises StackError when one cannot be computed."""
    found: list[Figure] = []
    for model, side, wanted in _MODELS:
        engine = measured(model, side, model_folder(model, plan.folder), plan.folder, (_TOKENS,))
        if engine.error:
            raise StackError(f"{model} was not computed: {engine.error}")
        notes = f"{model}, {engine.dtype}, steps of {_TOKENS} tokens in queries of so many"
        for name, step_s in engine.lengths.items():
            found.append(Figure(NAME, f"{model}_{name.replace(' ', '_')}", 1e3 * step_s, "ms", 1, notes))
        found.append(Figure(NAME, f"{model}_apart", engine.apart, "ratio", 1, notes, wanted))
    return found
