"""How long one step of a generating engine takes: linear in the requests that decode and the prompt tokens it reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeCurve:
    """Seconds of a step: `fixed_s`, plus a time for each running request and each prompt token (Pang et al., D(b))."""

    fixed_s: float
    per_request_s: float
    per_prompt_token_s: float = 0.0

    def time_s(self, running: int, prompt_tokens: int = 0) -> float:
        """Seconds of a step in which this many requests each get a token, and this many prompt tokens are read."""
        return self.fixed_s + self.per_request_s * running + self.per_prompt_token_s * prompt_tokens

    def slower(self, factor: float) -> DecodeCurve:
        """The same shape, `factor` times as long."""
        return DecodeCurve(self.fixed_s * factor, self.per_request_s * factor, self.per_prompt_token_s * factor)


def through(first: tuple[int, float], second: tuple[int, float]) -> DecodeCurve:
    """The line through two points (requests, seconds). Raises ValueError unless it rises from a positive start."""
    (few, few_s), (many, many_s) = first, second
    per_request_s = (many_s - few_s) / (many - few)
    fixed_s = few_s - per_request_s * few
    if per_request_s <= 0.0 or fixed_s <= 0.0:
        raise ValueError(f"no curve of a step goes through {first} and {second}")
    return DecodeCurve(fixed_s, per_request_s)
