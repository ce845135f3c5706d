"""Daniel et al.: throughput of static and continuous batches as output lengths vary.

OPT-13B on an A100 of 40 GB, whose cache holds some 14,000 tokens, according to the source. It prints one figure of the
naive static server (81 tokens/s on the widest lengths), to which the time of a step is fitted; prompts are read at
what the card can compute. Static and plain continuous batching reserve room for the longest request there is; with
pages, room is taken as it is needed, and the core's memory limit says how many requests that allows.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from loadtest.simulate.generation.engine import (
    DecodeCurve,
    Generated,
    Server,
    Work,
    at_once,
    exponential,
    generate,
    poisson,
)
from loadtest.simulate.generation.limits import ByMemory, Fixed, Limit
from loadtest.simulate.generation.memory import MemoryPolicy

CACHE_TOKENS = 14_000
PROMPT = 512
MOST = (32, 128, 512, 1536)
"""The longest outputs of the four data sets, of which the lengths are exponential with a mean of 128 before the cut."""
CURVE = DecodeCurve(0.0268, 0.0004, 0.00017)
"""Fitted to 81 tokens/s (`fixed_s`); 0.4 ms read a request's cache at 1.5 TB/s, 0.17 ms compute a prompt token."""
_MEAN = 128.0
_REQUESTS, _CALLS = 1000, 100
RATES = (1.0, 4.0)
"""Requests a second, of the source's latencies."""


class Way(StrEnum):
    """How requests share the card."""

    STATIC = "static"
    CONTINUOUS = "continuous"
    PAGED = "continuous, paged"


def throughput(way: Way, most: int, seed: int = 1) -> Generated:
    """A thousand requests at once, all with prompts of 512 tokens."""
    rng = np.random.default_rng([seed, most])
    outputs = exponential(_MEAN, most, _REQUESTS, rng)
    return _run(way, at_once(np.full(_REQUESTS, PROMPT), outputs), PROMPT + most)


def latency(way: Way, per_s: float, seed: int = 1) -> Generated:
    """A hundred requests as the source sends them for its latencies: `per_s` a second, prompts of 1 to 512 tokens."""
    rng = np.random.default_rng([seed, round(1000 * per_s)])
    prompts = rng.integers(1, PROMPT + 1, _CALLS)
    outputs = exponential(_MEAN, MOST[-1], _CALLS, rng)
    return _run(way, poisson(per_s, prompts, outputs, rng), PROMPT + MOST[-1])


def _run(way: Way, work: Work, longest: int) -> Generated:
    server = Server(CURVE, CACHE_TOKENS, continuous=way is not Way.STATIC)
    return generate(server, _limit(way, longest), work)


def _limit(way: Way, longest: int) -> Limit:
    if way is Way.PAGED:
        return ByMemory(MemoryPolicy(CACHE_TOKENS, longest, _REQUESTS, overflow=0.05))
    return Fixed(CACHE_TOKENS // longest)
