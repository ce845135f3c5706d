"""The moving average of arriving tokens, and of the tokens of a request."""

from __future__ import annotations

import math
from dataclasses import dataclass

_FORGET_WINDOWS = 5.0  # by then the average has fallen below 1 % of its value


@dataclass(frozen=True, slots=True)
class ArrivalPolicy:
    """`window_s`: the time constant of the rate. `memory_requests`: that of the mean length, in requests.

    `first_tokens_per_input` is a guess until the first input is counted: an arrival must start a first server.
    """

    window_s: float = 15.0
    memory_requests: float = 2000.0
    first_tokens_per_input: float = 20.0


class Arrivals:
    """One model's arrivals from one source.

    Arrivals are counted before anything can refuse them, and before their tokens are known. So inputs are counted at
    arrival, tokens per input where they are tokenized, and the rate is the product. Shedding therefore does not hide
    demand. Five windows after the last arrival the rate is 0: a rate that only decays stays above 0 for hours and keeps
    a model's servers running. `total_inputs` and `total_tokens` are sums since the start. `tokens_per_request`: recent
    mean; 0 before any was counted.
    """

    __slots__ = (
        "_arrived_s",
        "_inputs",
        "_mean_inputs",
        "_policy",
        "_requests_seen",
        "_since_s",
        "_updated_s",
        "tokens_per_request",
        "total_inputs",
        "total_tokens",
    )

    def __init__(self, policy: ArrivalPolicy, now_s: float) -> None:
        self._policy = policy
        self._since_s = now_s
        self._updated_s = now_s
        self._arrived_s = now_s
        self._inputs = 0.0
        self._requests_seen = 0.0
        self._mean_inputs = 0.0
        self.tokens_per_request = 0.0
        self.total_inputs = 0
        self.total_tokens = 0

    def arrived(self, inputs: int, now_s: float) -> None:
        self._decay(now_s)
        self._inputs += inputs
        self.total_inputs += inputs
        if inputs:
            self._arrived_s = self._updated_s

    def counted(self, requests: int, inputs: int, tokens: int) -> None:
        if not requests or not inputs:
            return
        self.total_tokens += tokens
        self._requests_seen = min(self._requests_seen + requests, self._policy.memory_requests)
        share = min(1.0, requests / self._requests_seen)
        self._mean_inputs += share * (inputs / requests - self._mean_inputs)
        self.tokens_per_request += share * (tokens / requests - self.tokens_per_request)

    def tokens_per_s(self, now_s: float) -> float:
        """Arriving tokens per second: arrived inputs times the recent mean tokens of an input.

        In its first seconds a process averages only over the time since its start.
        """
        self._decay(now_s)
        seen_s = self._policy.window_s * -math.expm1(-max(now_s - self._since_s, 1.0) / self._policy.window_s)
        guess = self._policy.first_tokens_per_input
        tokens_per_input = self.tokens_per_request / self._mean_inputs if self._mean_inputs else guess
        return self._inputs / seen_s * tokens_per_input

    def _decay(self, now_s: float) -> None:
        self._inputs *= math.exp(-max(0.0, now_s - self._updated_s) / self._policy.window_s)
        self._updated_s = max(now_s, self._updated_s)
        if self._updated_s - self._arrived_s > _FORGET_WINDOWS * self._policy.window_s:
            self._inputs = 0.0
