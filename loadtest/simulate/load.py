"""When queries arrive, and how many tokens they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt
from typing_extensions import override

Times = npt.NDArray[np.float64]
Pieces = Sequence[tuple[float, float, float]]
"""(from_s, until_s, queries per second)."""

TRACE_FILE = "azure_llm_code_2023.csv"
TRACE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Steady:
    """A Poisson process of constant rate."""

    rate: float

    def draw(self, duration_s: float, rng: np.random.Generator) -> Times:
        """Arrival times in seconds, sorted, float64."""
        return poisson([(0.0, duration_s, self.rate)], rng)


@dataclass(frozen=True, slots=True)
class Steps:
    """Poisson, with another rate from each time on; the first must be at 0."""

    rates: tuple[tuple[float, float], ...]

    def draw(self, duration_s: float, rng: np.random.Generator) -> Times:
        ends = [from_s for from_s, _ in self.rates[1:]] + [duration_s]
        pieces = [(start, min(end, duration_s), rate) for (start, rate), end in zip(self.rates, ends, strict=True)]
        return poisson([piece for piece in pieces if piece[0] < piece[1]], rng)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Poisson, with bursts of `burst_s` at `factor` times the rate, on average every `every_s`, at random times."""

    rate: float
    factor: float = 4.0
    burst_s: float = 0.5
    every_s: float = 5.0

    def draw(self, duration_s: float, rng: np.random.Generator) -> Times:
        quiet_s = self.every_s - self.burst_s
        pieces: list[tuple[float, float, float]] = []
        now_s = 0.0
        while now_s < duration_s:
            burst_s = now_s + quiet_s * (0.5 + rng.random())
            end_s = burst_s + self.burst_s
            pieces += [(now_s, burst_s, self.rate), (burst_s, end_s, self.rate * self.factor)]
            now_s = end_s
        times = poisson(pieces, rng)
        return times[times < duration_s]


@dataclass(frozen=True, slots=True)
class Day:
    """A day of `day_s` seconds: a sine from `low` at night to `high` queries per second in the afternoon."""

    low: float
    high: float
    day_s: float = 86400.0

    def draw(self, duration_s: float, rng: np.random.Generator) -> Times:
        piece_s = self.day_s / 288.0
        starts = np.arange(0.0, duration_s, piece_s)
        middle, swing = (self.low + self.high) / 2.0, (self.high - self.low) / 2.0
        return poisson(
            [
                (start, min(start + piece_s, duration_s), middle - swing * math.cos(math.tau * start / self.day_s))
                for start in starts.tolist()
            ],
            rng,
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """The arrivals of the bundled trace's hour; its rate is raised by superposing `copies`, each shifted at random.

    Shifts are up to `spread_s`: all of the hour levels the load, less keeps what takes longer than that of its shape.
    """

    copies: int = 1
    spread_s: float = TRACE_S

    def draw(self, duration_s: float, rng: np.random.Generator) -> Times:
        hour = trace()
        shifts = np.concatenate([[0.0], rng.random(self.copies - 1) * self.spread_s])
        times = np.sort(np.concatenate([(hour + shift) % TRACE_S for shift in shifts.tolist()]))
        return times[times < duration_s]


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """Arrivals that were recorded, seconds after the first; with `copies` each comes this many times, at once."""

    times_s: Times
    copies: int = 1

    def draw(self, duration_s: float, rng: np.random.Generator) -> Times:
        del rng
        return np.repeat(self.times_s[self.times_s <= duration_s], self.copies)


Arrivals = Steady | Steps | Bursts | Day | Replay | Replayed


def poisson(pieces: Pieces, rng: np.random.Generator) -> Times:
    """A Poisson process whose rate is constant on each of the pieces, which follow each other."""
    drawn = [
        np.sort(rng.uniform(from_s, until_s, rng.poisson(rate * (until_s - from_s))))
        for from_s, until_s, rate in pieces
    ]
    return np.concatenate(drawn) if drawn else np.empty(0)


@cache
def trace() -> Times:
    """The bundled trace's arrivals, in seconds after the first."""
    text = resources.files("loadtest").joinpath("data", TRACE_FILE).read_text(encoding="utf-8")
    lines = [line.partition(",")[0] for line in text.splitlines()[1:] if line]
    stamps = [datetime.fromisoformat(line[:26]) for line in lines]
    return np.array([(stamp - stamps[0]).total_seconds() for stamp in stamps])


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


class QueryKind(StrEnum):
    """The kind of queries."""

    QUESTIONS = "questions"  # NQ-open's lengths
    LOGNORMAL = "lognormal"  # 3 to 60 tokens, skewed (Voyage AI: "highly skewed"): median 12, mean 15
    FIXED = "fixed"  # all of the same length


@dataclass(frozen=True)
class Lengths:
    """A mixture: queries of one kind, and `documents` of the inputs (a share) longer, around `document_tokens`."""

    kind: QueryKind = QueryKind.QUESTIONS
    documents: float = 0.0
    document_tokens: int = 250
    longest: int = 512
    fixed_tokens: int = 12

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """Lengths in tokens of this many inputs, int64 [count]."""
        lengths = self._queries(count, rng)
        if self.documents > 0.0:
            long = rng.random(count) < self.documents
            drawn = np.rint(self.document_tokens * np.exp(0.5 * rng.standard_normal(count))).astype(np.int64)
            lengths = np.where(long, np.clip(drawn, 64, self.longest), lengths)
        return lengths

    def _queries(self, count: int, rng: np.random.Generator) -> Ints:
        match self.kind:
            case QueryKind.QUESTIONS:
                counts = np.array(list(NQ_COUNTS.values()), dtype=np.float64)
                return rng.choice(np.array(list(NQ_COUNTS)), size=count, p=counts / counts.sum())
            case QueryKind.LOGNORMAL:
                return np.clip(np.rint(12.0 * np.exp(0.6 * rng.standard_normal(count))).astype(np.int64), 3, 60)
            case QueryKind.FIXED:
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
