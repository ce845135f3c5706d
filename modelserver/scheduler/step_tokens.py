"""Decide how many tokens the next step of a generating engine holds, so that the time between tokens keeps its target.

A step takes c + d for each sequence that decodes + p for each token of a prompt. What is left of the target after the
sequences that decode goes to prompts: the long ones of new sequences are cut into parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from modelserver.engines.engine import StepLoad

_TARGET_SHARE = 0.8
"""Of the target: steps scatter, and the 99th percentile is to keep it."""
_LEAST_STEPS = 2.0
"""Times what a step costs by itself: a lower target cannot be met, and would only starve prompts."""
_LEAST_PROMPT_TOKENS = 16
"""Of every step, however many decode: else a new sequence would never begin."""
_SCALE_WEIGHT = 0.1
_SLOWEST, _QUICKEST = 3.0, 0.3


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
