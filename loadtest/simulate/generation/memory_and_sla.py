"""Pang et al.'s Tables I and II: a fixed batch size against one that follows memory and step times.

The paper prints no curve of a step but for one model (Figure 3, in two points), and neither its hardware nor its fixed
batch sizes. What stands in for them is here, by name. Each row's curve has Figure 3's shape, and is stretched until the
fixed batch gives that row's printed throughput; the dynamic column is then a prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadtest.simulate.generation.engine import (
    DecodeCurve,
    Generated,
    Ints,
    Server,
    Work,
    around,
    at_once,
    generate,
    poisson,
    through,
)
from loadtest.simulate.generation.limits import ByMemory, ByPaper, Fixed, Least, Limit
from loadtest.simulate.generation.memory import MemoryPolicy

_LINE = through((100, 0.050), (230, 0.080))
FIGURE_3 = DecodeCurve(_LINE.fixed_s, _LINE.per_request_s, 0.00012)
"""Through the figure's two points. A prompt token's 0.12 ms make throughput 5 to 6 % less than b / D(b), as printed."""
FIXED_BATCH = 256
"""What vLLM ran at once by default, at the time of the paper."""
TARGET_S = 0.050
_SPREAD = 0.5
_LONGEST = 2048
_MAX_BATCH = 256
_PATIENCE_S = 2.0
_TOLERANCE = 1.05


@dataclass(frozen=True, slots=True)
class Row:
    """One row of Table I: mean lengths in tokens, requests, printed tokens/s; `cache_tokens` is our assumption."""

    model: str
    prompt: float
    output: float
    requests: int
    static: float
    dynamic: float
    cache_tokens: int = 10_000_000
    spread: float = _SPREAD


# The caches of eight cards of 80 GB, nine tenths used, less the weights: 2.6 MB a token for LLaMA-65B, 0.33 MB for
# LLaMA3-70B. PanGu's cache is not known, and taken for large enough; its lengths stand there as if all were the same.
TABLE_1 = (
    Row("LLaMA-65B", 68.4, 344.5, 1319, 1983, 2146, 170_000),
    Row("LLaMA3-70B", 68.4, 454.4, 1319, 3153, 3357, 1_300_000),
    Row("LLaMA3-70B", 191.0, 381.9, 3000, 2296, 2575, 1_300_000),
    Row("PanGu-7B", 128, 128, 1000, 2305, 2956, spread=0.0),
    Row("PanGu-38B", 128, 128, 1000, 2215, 2569, spread=0.0),
    Row("PanGu-135B", 128, 128, 1000, 1342, 1449, spread=0.0),
)


@dataclass(frozen=True, slots=True)
class SlaRow:
    """One row of Table II: printed queries/s with a fixed and a dynamic batch; `fixed` requests run at once at most.

    `fixed` is the power of two nearest to what Little's law makes of the printed figures: tokens/s times 50 ms.
    """

    model: str
    prompt: float
    output: float
    static: float
    dynamic: float
    fixed: int
    requests: int = 3000


# The third row is of the paper's prefill-decode fusion, where its method also sets the size of prompts' chunks.
TABLE_2 = (
    SlaRow("LLaMA-65B", 237.7, 416.2, 1190 / 416.2, 1223 / 416.2, 64),
    SlaRow("LLaMA3-70B", 256.6, 61.5, 5.4, 6.6, 16),
    SlaRow("LLaMA3-70B, PD fusion", 256.6, 447.5, 3.0, 3.8, 64),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """What the fixed and the dynamic batch give (tokens/s in Table I, queries/s in Table II), and requests at once."""

    static: float
    dynamic: float
    static_running: float
    dynamic_running: float

    @property
    def gain(self) -> float:
        """The dynamic one's advantage, as a share."""
        return self.dynamic / self.static - 1.0


def table_1(row: Row, seed: int = 1) -> Compared:
    """All requests at once: the fixed batch fits the curve, the memory limit of the core gives the prediction."""
    rng = np.random.default_rng(seed)
    work = at_once(
        around(row.prompt, row.spread, row.requests, rng, _LONGEST),
        around(row.output, row.spread, row.requests, rng, _LONGEST),
    )
    shape = generate(Server(FIGURE_3, row.cache_tokens), Fixed(FIXED_BATCH), work)
    server = Server(FIGURE_3.slower(shape.tokens_per_s / row.static), row.cache_tokens)
    static = generate(server, Fixed(FIXED_BATCH), work)
    dynamic = generate(server, memory_limit(row.cache_tokens, row.requests), work)
    return Compared(static.tokens_per_s, dynamic.tokens_per_s, static.running, dynamic.running)


def memory_limit(cache_tokens: int, most: int) -> ByMemory:
    """Algorithm 1 with one request in a hundred allowed to overflow."""
    return ByMemory(MemoryPolicy(cache_tokens, min(2 * _LONGEST, cache_tokens), most))


def table_2(row: SlaRow, seed: int = 1) -> Compared:
    """The highest rates at which steps take 50 ms in the mean and half of the requests wait less than 2 s."""
    curve = _fitted(row, seed)
    static_qps, static = capacity(row, curve, lambda: Fixed(row.fixed), seed, within_target=False)
    dynamic_qps, dynamic = capacity(row, curve, sla_limit, seed)
    return Compared(static_qps, dynamic_qps, static.running, dynamic.running)


def capacity(
    row: SlaRow, curve: DecodeCurve, limit: Callable[[], Limit], seed: int, *, within_target: bool = True
) -> tuple[float, Generated]:
    """By halving: queries a second, and what came of it there. A fixed batch knows no target, and is held to none."""
    lowest, highest = 0.0, 4.0 * row.static
    best: Generated | None = None
    while highest - lowest > 0.01 * row.static:
        rate = (lowest + highest) / 2.0
        found = generate(Server(curve), limit(), _coming(row, rate, seed))
        kept = found.step_s <= _TOLERANCE * TARGET_S or not within_target
        if kept and float(np.median(found.wait_s)) < _PATIENCE_S:
            lowest, best = rate, found
        else:
            highest = rate
    assert best is not None, "No rate is slow enough. This is a bug."
    return lowest, best


def _coming(row: SlaRow, rate: float, seed: int) -> Work:
    rng = np.random.default_rng(seed)
    return poisson(rate, *_lengths(row, rng), rng)


def sla_limit() -> Limit:
    """Algorithm 2, bounded by Algorithm 1 on a cache that is large enough."""
    return Least([ByPaper(TARGET_S, _MAX_BATCH), memory_limit(1_300_000, _MAX_BATCH)])


def _fitted(row: SlaRow, seed: int) -> DecodeCurve:
    rng = np.random.default_rng(seed)
    lengths = _lengths(row, rng)
    full = generate(Server(FIGURE_3), Fixed(row.fixed), at_once(*lengths))
    return FIGURE_3.slower(full.tokens_per_s / (row.static * row.output))


def _lengths(row: SlaRow, rng: np.random.Generator) -> tuple[Ints, Ints]:
    prompts = around(row.prompt, _SPREAD, row.requests, rng, _LONGEST)
    return prompts, around(row.output, _SPREAD, row.requests, rng, _LONGEST)
