"""How long an engine step takes by its tokens: what `ModelServer.Describe` says of a server, as Python has it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """Which rule gave the saturation point; part of the published profile."""

    HINGE = "hinge"
    THROUGHPUT = "throughput"
    FLAT = "flat"


@dataclass(frozen=True, slots=True)
class Curve:
    """Step time by tokens, t(T) = max(floor, fixed + per_token * T), and its saturation point in tokens.

    `max_tokens` is the T_max of the sweep, on which the throughput rule and the flat rule depend (Voyage AI,
    figures 2 and 3). `backlog_tokens`: the size of batches from which on a backlog gains no more, by what they cost
    the whole server; 0 where that was not measured.
    """

    floor_s: float
    fixed_s: float
    per_token_s: float
    saturation_point: int
    rule: Rule
    max_tokens: int
    backlog_tokens: int = 0

    def time_s(self, tokens: int) -> float:
        """Seconds that one engine step over `tokens` tokens takes."""
        return max(self.floor_s, self.fixed_s + self.per_token_s * tokens)

    def throughput(self, tokens: int) -> float:
        """Tokens per second when steps of `tokens` tokens follow each other without a gap."""
        return tokens / self.time_s(tokens) if tokens else 0.0
