"""Bound the requests that a generating engine runs at once by memory: by the probability that it overflows.

A request's output length is not known before it has run: with b requests of mean length m and variance v (input plus
output) in a capacity of eta tokens, the sum is nearly normal (seed 001, equations 7 to 10), and b is the largest with
P(sum > eta) <= epsilon_M (equation 11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

_MIN_LENGTHS = 30
_EVEN_ODDS = 0.5


class MemoryForm(StrEnum):
    """How the limit follows from the lengths' moments: by equation 12, or by 14 with a buffer renewed now and then."""

    EXACT = "exact"
    LINEAR = "linear"


def exact_batch(capacity_tokens: float, mean_tokens: float, variance: float, overflow: float) -> float:
    """b*, the requests whose tokens exceed the capacity with probability `overflow` (seed 001, equation 12 squared).

    It solves b * m + theta * sqrt(b * v) = eta for b, theta = inverse normal CDF of 1 - epsilon_M. The seed's
    text prints the root of b; its square is meant. `variance` is in tokens squared. Raises ValueError for a
    mean, capacity or variance out of range, or a probability outside (0, 0.5].
    """
    if not (0.0 < mean_tokens < math.inf and 0.0 <= variance < math.inf and 0.0 < capacity_tokens < math.inf):
        raise ValueError(f"not lengths: mean {mean_tokens}, variance {variance}, capacity {capacity_tokens}")
    spread = _theta(overflow) * math.sqrt(variance)
    return ((math.sqrt(spread**2 + 4.0 * mean_tokens * capacity_tokens) - spread) / (2.0 * mean_tokens)) ** 2


def safety_buffer_tokens(capacity_tokens: float, mean_tokens: float, variance: float, overflow: float) -> float:
    """L0, the tokens to keep free (seed 001, equations 13 and 14), taken at b*: theta * sqrt(b* * v).

    The seed's text takes it at the current batch, L0 = eta - (theta * sigma_S + mu_S). Then equation 14 gives
    b + theta * sqrt(b * v) / m, in which eta no longer stands: each update grows the batch, without end.
    """
    batch = exact_batch(capacity_tokens, mean_tokens, variance, overflow)
    return _theta(overflow) * math.sqrt(batch * variance)


def linear_batch(capacity_tokens: float, mean_tokens: float, buffer_tokens: float) -> int:
    """Equation 14 of seed 001: the requests of mean length that fit beside the safety buffer; never below 0."""
    return max(0, math.floor((capacity_tokens - buffer_tokens) / mean_tokens))


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """Settings: capacity eta in tokens, epsilon_M, B_max in requests, and the longest request the model takes.

    `memory_lengths` is how many requests the moments remember; `refresh_s` how often the linear form renews L0.
    """

    capacity_tokens: int
    max_request_tokens: int
    max_batch: int
    overflow: float = 0.01
    form: MemoryForm = MemoryForm.LINEAR
    memory_lengths: int = 1000
    refresh_s: float = 10.0

    def __post_init__(self) -> None:
        """Raise ValueError when one request would not fit, or a setting is out of range."""
        if not 1 <= self.max_request_tokens <= self.capacity_tokens:
            raise ValueError(f"a request of {self.max_request_tokens} in a capacity of {self.capacity_tokens} tokens")
        if self.max_batch < 1 or self.memory_lengths < _MIN_LENGTHS or not self.refresh_s >= 0.0:
            raise ValueError(f"out of range: {self.max_batch}, {self.memory_lengths} requests, {self.refresh_s} s")
        _theta(self.overflow)


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


class MemoryController:
    """Algorithm 1 of seed 001 for a generating engine: how many requests may run at once.

    Until thirty lengths are known it admits only what fits if every request is of the longest kind.
    """

    __slots__ = ("_buffer_tokens", "_lengths", "_policy", "_refreshed_s", "batch_limit")

    def __init__(self, policy: MemoryPolicy) -> None:
        self._policy = policy
        self._lengths = LengthMoments(policy.memory_lengths)
        self._buffer_tokens = 0.0
        self._refreshed_s = -math.inf
        self.batch_limit = min(policy.max_batch, policy.capacity_tokens // policy.max_request_tokens)

    def observe(self, tokens: int) -> None:
        """Learn one finished request's input plus output length."""
        self._lengths.observe(tokens)

    def update(self, waiting: int, running: int, now_s: float) -> int:
        """The new limit, changed only when requests both wait and run (lines 4 to 6 of Algorithm 1)."""
        if waiting > 0 and running > 0 and self._lengths.count >= _MIN_LENGTHS:
            self.batch_limit = min(max(self._by_memory(now_s), running), self._policy.max_batch)
        return self.batch_limit

    def _by_memory(self, now_s: float) -> int:
        policy, lengths = self._policy, self._lengths
        known = (policy.capacity_tokens, lengths.mean, lengths.variance, policy.overflow)
        if policy.form is MemoryForm.EXACT:
            return math.floor(exact_batch(*known))
        if now_s - self._refreshed_s >= policy.refresh_s:
            self._buffer_tokens = safety_buffer_tokens(*known)
            self._refreshed_s = now_s
        return linear_batch(policy.capacity_tokens, lengths.mean, self._buffer_tokens)


def _theta(overflow: float) -> float:
    if not 0.0 < overflow <= _EVEN_ODDS:
        raise ValueError(f"not a probability of overflow: {overflow}")
    return NormalDist().inv_cdf(1.0 - overflow)
