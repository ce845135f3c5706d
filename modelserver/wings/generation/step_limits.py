"""Limit the next step of a generating engine: its tokens by time, and its sequences by time and memory.

*Time between tokens.* A step takes c + d for each sequence that decodes + p for each token of a prompt. What is left of
the target after the sequences that decode goes to prompts: the long ones of new sequences are cut into parts.

*Memory.* A sequence's length is not known before it has run: with b sequences of mean length m and variance v in a
capacity of eta tokens, the sum is nearly normal (Pang et al., equations 7 to 10), and b is the largest with
P(sum > eta) <= epsilon_M (equation 11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from modelserver.wings.generation.generator import StepLoad
from modelserver.wings.generation.settings import MemoryForm

_TARGET_SHARE = 0.8
"""Share of the target: steps scatter, and the 99th percentile is to keep it."""
_LEAST_STEPS = 2.0
"""Costs of an empty step: a lower target cannot be met, and would only starve prompts."""
_LEAST_PROMPT_TOKENS = 16
"""In every step, however many sequences decode: else a new one would never begin."""
_SCALE_WEIGHT = 0.1  # of the newest step: an outlier moves the scale by a tenth
_SLOWEST, _QUICKEST = 3.0, 0.3
_MIN_LENGTHS = 30  # below it mean and variance are guesses
_MEMORY_LENGTHS = 1000  # generations; earlier lengths fade
_OVERFLOW = 0.05
"""epsilon_M; in trials, neither form gained by another value."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: `fixed_s`, `per_sequence_s` for each that decodes, `per_token_s` for each other token."""

    fixed_s: float
    per_sequence_s: float
    per_token_s: float

    def time_s(self, load: StepLoad) -> float:
        tokens = load.prefill_tokens + load.embedding_tokens
        return self.fixed_s + self.per_sequence_s * load.decoding + self.per_token_s * tokens


class StepTokens:
    """The rule for one engine, corrected by how its steps compare with the measured cost."""

    def __init__(self, cost: StepCost, target_s: float, most_tokens: int, most_sequences: int) -> None:
        """`target_s`: of the time between two tokens of one sequence."""
        self._cost = cost
        self._allowed_s = _TARGET_SHARE * target_s
        self._most_tokens = most_tokens
        self._most_sequences = most_sequences
        self._scale = 1.0

    def observe(self, load: StepLoad, took_s: float) -> None:
        expected_s = self._cost.time_s(load)
        if took_s > 0.0 and expected_s > 0.0:
            self._scale += _SCALE_WEIGHT * (min(_SLOWEST, max(_QUICKEST, took_s / expected_s)) - self._scale)

    def tokens(self, decoding: int) -> int:
        cost, scale = self._cost, self._scale
        left_s = self._step_s() - scale * (cost.fixed_s + cost.per_sequence_s * decoding)
        prompt_tokens = left_s / (scale * cost.per_token_s) if cost.per_token_s > 0.0 else self._most_tokens
        return min(self._most_tokens, decoding + max(_LEAST_PROMPT_TOKENS, int(prompt_tokens)))

    def sequences(self) -> int:
        """Sequences that may run at once: a step in which all of them decode is as long as allowed."""
        cost, scale = self._cost, self._scale
        if cost.per_sequence_s <= 0.0:
            return self._most_sequences
        fitting = int((self._step_s() / scale - cost.fixed_s) / cost.per_sequence_s)
        return max(1, min(self._most_sequences, fitting))

    def _step_s(self) -> float:
        return max(self._allowed_s, _LEAST_STEPS * self._scale * self._cost.fixed_s)


def exact_batch(capacity_tokens: float, mean_tokens: float, variance: float, overflow: float) -> float:
    """b*, the requests whose tokens exceed the capacity with probability `overflow` (Pang et al., equation 12 squared).

    It solves b * m + theta * sqrt(b * v) = eta for b, theta = inverse normal CDF of 1 - epsilon_M. The seed's
    text prints the root of b; its square is meant. `variance` is in tokens squared, `overflow` at most one half.
    """
    spread = theta(overflow) * math.sqrt(variance)
    return ((math.sqrt(spread**2 + 4.0 * mean_tokens * capacity_tokens) - spread) / (2.0 * mean_tokens)) ** 2


class LengthMoments:
    """Running mean and variance of request lengths in tokens, forgetting exponentially once `memory` were seen."""

    __slots__ = ("_memory", "count", "mean", "variance")

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.count = 0
        self.mean = 0.0
        self.variance = 0.0

    def observe(self, tokens: int) -> None:
        """Learn one finished request's input plus output length."""
        self.count += 1
        weight = 1.0 / min(self.count, self._memory)
        surprise = tokens - self.mean
        self.mean += weight * surprise
        self.variance = (1.0 - weight) * (self.variance + weight * surprise**2)


class OccupancyMoments:
    """Mean and variance of the tokens that a running sequence holds: its prompt, and part of its output.

    One of i prompt tokens and o new ones held each length from i to i + o for a step: it counts o times, evenly spread.
    """

    __slots__ = ("_first", "_memory", "_second", "_weight", "count")

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.count = 0
        self._weight = self._first = self._second = 0.0

    @property
    def mean(self) -> float:
        return self._first / self._weight

    @property
    def variance(self) -> float:
        return max(0.0, self._second / self._weight - self.mean**2)

    def observe(self, prompt_tokens: int, new_tokens: int) -> None:
        self.count += 1
        share = 1.0 / min(self.count, self._memory)
        inside = prompt_tokens * (prompt_tokens + new_tokens)
        self._weight += share * (new_tokens - self._weight)
        self._first += share * (new_tokens * (prompt_tokens + new_tokens / 2) - self._first)
        self._second += share * (new_tokens * (inside + new_tokens**2 / 3) - self._second)


class MemoryLimit:
    """How many sequences may run at once (Algorithm 1 of Pang et al.), by the lengths of finished ones.

    Until thirty lengths are known, it counts each sequence with the longest length.
    """

    def __init__(self, form: MemoryForm, capacity_tokens: int, longest_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._lengths = LengthMoments(_MEMORY_LENGTHS)
        self._held = OccupancyMoments(_MEMORY_LENGTHS)
        self._moments = self._lengths if form is MemoryForm.LENGTH else self._held
        self._first_limit = max(1, capacity_tokens // longest_tokens)

    def observe(self, prompt_tokens: int, new_tokens: int) -> None:
        self._lengths.observe(prompt_tokens + new_tokens)
        self._held.observe(prompt_tokens, new_tokens)

    def sequences(self, running: int) -> int:
        """The number of sequences that may run; at least `running`."""
        moments = self._moments
        if moments.count < _MIN_LENGTHS:
            return max(running, self._first_limit)
        fitting = exact_batch(self._capacity_tokens, moments.mean, moments.variance, _OVERFLOW)
        return max(running, 1, math.floor(fitting))


def theta(overflow: float) -> float:
    """The standard normal quantile that is passed with that probability."""
    return NormalDist().inv_cdf(1.0 - overflow)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of the next step: by the time between tokens, and by memory if that is limited in advance."""

    step_tokens: StepTokens
    memory: MemoryLimit | None

    def sequences(self, running: int) -> int:
        """Generations at once, while `running` of them run."""
        sequences = self.step_tokens.sequences()
        return sequences if self.memory is None else min(sequences, self.memory.sequences(running))
