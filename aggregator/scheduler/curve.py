"""How long an engine step takes by its tokens, and the budgets that follow: the curve in `ModelServer.Describe`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    figures 2 and 3). `backlog_tokens`: the size of batches above which a backlog gains nothing, by what they cost
    the whole server; 0 where that was not measured. `capture_sizes`: the engine has a CUDA graph for steps of each of
    these sizes (tokens, ascending) and pads a smaller step to the next one, so only t of those sizes is what it takes.
    `eager_s`: what a step above the largest of them takes at least, where the host launches its kernels one by one.
    """

    floor_s: float
    fixed_s: float
    per_token_s: float
    saturation_point: int
    rule: Rule
    max_tokens: int
    backlog_tokens: int = 0
    capture_sizes: tuple[int, ...] = ()
    eager_s: float = 0.0

    def time_s(self, tokens: int) -> float:
        """Seconds that one engine step over `tokens` tokens takes."""
        floor_s = self.floor_s
        if self.capture_sizes:
            tokens = self.padded(tokens)
            if tokens > self.capture_sizes[-1]:
                floor_s = max(floor_s, self.eager_s)
        return max(floor_s, self.fixed_s + self.per_token_s * tokens)

    def padded(self, tokens: int) -> int:
        """The tokens that a step over `tokens` tokens computes: the next capture size, if there is one."""
        sizes = self.capture_sizes
        place = bisect_left(sizes, tokens)
        return sizes[place] if place < len(sizes) else tokens

    def captured_within(self, tokens: int) -> int:
        """The largest capture size of at most `tokens` tokens; 0 if there is none."""
        place = bisect_right(self.capture_sizes, tokens)
        return self.capture_sizes[place - 1] if place else 0

    def throughput(self, tokens: int) -> float:
        """Tokens per second when steps of `tokens` tokens follow each other without a gap."""
        return tokens / self.time_s(tokens) if tokens else 0.0

    def snapped(self, tokens: int, most: int) -> int:
        """The budget near `tokens` with the highest throughput, at most `most`; `tokens` if there are no capture sizes.

        A step is padded to the next capture size and takes as long as one of that size, so a budget between two sizes
        pays for tokens that it does not hold. The upper size costs nothing more. If `most` rules it out, the lower size
        is better where a step's time follows its tokens, and `tokens` where it hardly does. So it is above the largest
        size, where a step without a graph may take longer for a few tokens more.
        """
        tokens = min(tokens, most)
        upper, lower = self.padded(tokens), self.captured_within(tokens)
        jumps = self.eager_s > 0.0 and lower == max(self.capture_sizes, default=0)
        if upper <= most and not jumps:
            return upper
        return lower if self.throughput(lower) >= self.throughput(tokens) else tokens
