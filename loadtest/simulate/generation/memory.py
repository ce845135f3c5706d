"""Algorithm 1 of Pang et al. as printed, for the tables of the paper; equation 12 is the model server's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from modelserver.wings.generation.step_limits import LengthMoments, exact_batch, theta

_MIN_LENGTHS = 30


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """Settings: capacity eta in tokens, epsilon_M, B_max in requests, and the longest request the model takes.

    `memory_lengths` is how many requests the moments remember; `refresh_s` how often L0 is renewed.
    """

    capacity_tokens: int
    max_request_tokens: int
    max_batch: int
    overflow: float = 0.01
    memory_lengths: int = 1000
    refresh_s: float = 10.0


class MemoryController:
    """Algorithm 1 of Pang et al. for a generating engine: how many requests may run at once.

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
        if now_s - self._refreshed_s >= policy.refresh_s:
            self._buffer_tokens = safety_buffer_tokens(*known)
            self._refreshed_s = now_s
        return linear_batch(policy.capacity_tokens, lengths.mean, self._buffer_tokens)


def safety_buffer_tokens(capacity_tokens: float, mean_tokens: float, variance: float, overflow: float) -> float:
    """L0, the tokens to keep free (Pang et al., equations 13 and 14), taken at b*: theta * sqrt(b* * v).

    The seed's text takes it at the current batch, L0 = eta - (theta * sigma_S + mu_S). Then equation 14 gives
    b + theta * sqrt(b * v) / m, in which eta no longer stands: each update grows the batch, without end.
    """
    batch = exact_batch(capacity_tokens, mean_tokens, variance, overflow)
    return theta(overflow) * math.sqrt(batch * variance)


def linear_batch(capacity_tokens: float, mean_tokens: float, buffer_tokens: float) -> int:
    """Equation 14 of Pang et al.: the requests of mean length that fit beside the safety buffer; never below 0."""
    return max(0, math.floor((capacity_tokens - buffer_tokens) / mean_tokens))
