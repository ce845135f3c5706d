"""Bound the sequences that a generating engine runs at once by memory: by the probability that it overflows.

A sequence's length is not known before it has run: with b sequences of mean length m and variance v in a capacity of
eta tokens, the sum is nearly normal (Pang et al., equations 7 to 10), and b is the largest with P(sum > eta) <=
epsilon_M (equation 11).
"""

from __future__ import annotations

import math
from enum import StrEnum
from statistics import NormalDist

_MIN_LENGTHS = 30
_MEMORY_LENGTHS = 1000
_OVERFLOW = 0.05
"""epsilon_M; in trials, neither form gained by another value."""


class MemoryForm(StrEnum):
    """What a sequence is counted with: all of its tokens at its end, as in the paper, or what it holds while it runs.

    Off, vLLM admits by the blocks that are free, and preempts when they run out.
    """

    OFF = "off"
    LENGTH = "length"
    OCCUPANCY = "occupancy"


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
    """Mean and variance of what a sequence holds at a moment while it runs: its prompt, and part of its output.

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
    """How many sequences may run at once (Algorithm 1 of Pang et al.), by the lengths of those that finished.

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
        """The number of sequences that may run; at least those that do."""
        moments = self._moments
        if moments.count < _MIN_LENGTHS:
            return max(running, self._first_limit)
        fitting = exact_batch(self._capacity_tokens, moments.mean, moments.variance, _OVERFLOW)
        return max(running, 1, math.floor(fitting))


def theta(overflow: float) -> float:
    """The standard normal quantile that is passed with that probability."""
    return NormalDist().inv_cdf(1.0 - overflow)
