"""How many tokens the queries hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from typing_extensions import override

Ints = npt.NDArray[np.int64]

NQ_COUNTS = {
    9: 2,
    10: 1076,
    11: 961,
    12: 608,
    13: 385,
    14: 211,
    15: 137,
    16: 82,
    17: 60,
    18: 29,
    19: 28,
    20: 15,
    21: 11,
    22: 3,
    24: 2,
}
"""The bundled NQ-open questions by their length in tokens, as MiniLM's tokenizer counts them: 11.8 in the mean."""


class Kind(StrEnum):
    """Which queries come."""

    QUESTIONS = "questions"  # NQ-open's lengths
    LOGNORMAL = "lognormal"  # 3 to 60 tokens, skewed (seed 000: "highly skewed"): median 12, mean 15
    FIXED = "fixed"  # all of the same length


@dataclass(frozen=True)
class Lengths:
    """A mixture: queries of one kind, and `documents` of the inputs (a share) longer, around `document_tokens`."""

    kind: Kind = Kind.QUESTIONS
    documents: float = 0.0
    document_tokens: int = 250
    longest: int = 512
    fixed_tokens: int = 12

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """Lengths in tokens of so many inputs, int64 [count]."""
        lengths = self._queries(count, rng)
        if self.documents > 0.0:
            long = rng.random(count) < self.documents
            drawn = np.rint(self.document_tokens * np.exp(0.5 * rng.standard_normal(count))).astype(np.int64)
            lengths = np.where(long, np.clip(drawn, 64, self.longest), lengths)
        return lengths

    def _queries(self, count: int, rng: np.random.Generator) -> Ints:
        match self.kind:
            case Kind.QUESTIONS:
                counts = np.array(list(NQ_COUNTS.values()), dtype=np.float64)
                return rng.choice(np.array(list(NQ_COUNTS)), size=count, p=counts / counts.sum())
            case Kind.LOGNORMAL:
                return np.clip(np.rint(12.0 * np.exp(0.6 * rng.standard_normal(count))).astype(np.int64), 3, 60)
            case Kind.FIXED:
                return np.full(count, self.fixed_tokens, dtype=np.int64)

    def mean(self) -> float:
        """Mean tokens of an input, by a large fixed draw."""
        return float(self.draw(200_000, np.random.default_rng(0)).mean())


@dataclass(frozen=True, eq=False)
class Drawn(Lengths):
    """Lengths that were recorded, in the order of arrival; what is longer than `longest` is cut, as models do."""

    tokens: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    copies: int = 1

    @override
    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """The first `count` of them."""
        del rng
        return np.minimum(np.repeat(self.tokens, self.copies)[:count], self.longest)
