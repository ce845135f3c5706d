"""The agreement of two engines over the same weights, which decides which of them serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from modelserver.engines.engine import Engine, EngineFacts, IdArray, Matrix

TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 4e-3}
"""The largest difference of equal results, by dtype: of components of unit vectors, or of scores."""

_LONGEST = 512  # tokens of the longest input of most encoders; more would only take longer
_SEED = 20_240_501


@dataclass(frozen=True, slots=True)
class Agreement:
    """The difference of two engines on unit vectors or scores, and the tolerance."""

    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.difference <= self.tolerance


def compare(candidate: Engine, oracle: Engine) -> Agreement:
    """Run both on the same batches. Raises whatever an engine raises."""
    facts = oracle.facts
    differences: list[float] = []
    for token_ids, lengths in batches(facts):
        second = lengths // 2 if facts.token_types else None
        ours = candidate.prepare(token_ids, lengths, second).execute()
        theirs = oracle.prepare(token_ids, lengths, second).execute()
        differences.append(apart(ours, theirs, facts))
    return Agreement(float(np.max(differences)), TOLERANCE[facts.dtype])  # np.max keeps NaN


def apart(ours: Matrix, theirs: Matrix, facts: EngineFacts) -> float:
    """The largest difference of components of unit vectors, or of scores; NaN where the shapes differ."""
    if ours.shape != theirs.shape:
        return float("nan")
    if facts.scoring is None:
        return float(np.abs(_unit(ours) - _unit(theirs)).max())
    scale = max(1.0, float(np.abs(theirs).max()))  # logits have no bound
    return float(np.abs(ours / scale - theirs / scale).max())


def batches(facts: EngineFacts) -> Iterator[tuple[IdArray, IdArray]]:
    """One query, a usual batch, equal lengths, and one with the longest query (up to 512 tokens)."""
    rng = np.random.default_rng(_SEED)
    longest = min(facts.max_input_tokens, facts.step_token_capacity, _LONGEST)
    shapes = ([1], [5], rng.integers(1, 33, 19), np.full(16, 10), [2, longest // 2, 1, longest // 4, 7])
    for shape in (*shapes, [longest]):
        lengths = np.clip(np.asarray(shape, np.int32), 1, longest)
        lengths = lengths[np.cumsum(lengths) <= facts.step_token_capacity][: facts.step_query_capacity]
        yield rng.integers(0, facts.vocabulary_size, int(lengths.sum()), np.int32), lengths


def _unit(matrix: Matrix) -> Matrix:
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.asarray(matrix / np.maximum(norms, np.finfo(np.float32).tiny), np.float32)
