"""What is to be generated: when requests come, how long their prompts are, and how much they will say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """Requests in the order of arrival: seconds, prompt tokens, output tokens; three lists of one length."""

    arrived_s: list[float]
    prompts: list[int]
    outputs: list[int]

    def __len__(self) -> int:
        return len(self.arrived_s)


def at_once(prompts: Ints, outputs: Ints) -> Work:
    """All requests come at time 0."""
    return Work([0.0] * len(outputs), prompts.tolist(), outputs.tolist())


def poisson(rate: float, prompts: Ints, outputs: Ints, rng: np.random.Generator) -> Work:
    """Requests come at random, `rate` a second in the mean."""
    arrived_s = np.cumsum(rng.exponential(1.0 / rate, len(outputs)))
    return Work(arrived_s.tolist(), prompts.tolist(), outputs.tolist())


def around(mean: float, spread: float, count: int, rng: np.random.Generator, longest: int = 2048) -> Ints:
    """Lognormal lengths of that mean, with a standard deviation of `spread` times the mean; 0 for all of one length."""
    sigma = np.sqrt(np.log1p(spread**2))
    drawn = mean * np.exp(sigma * rng.standard_normal(count) - sigma**2 / 2.0)
    lengths: Ints = np.clip(np.rint(drawn), 1, longest).astype(np.int64)
    return lengths


def exponential(mean: float, most: int, count: int, rng: np.random.Generator) -> Ints:
    """Exponential lengths of that mean of which only those up to `most` are kept (Daniel et al.'s data sets)."""
    # The inverse of the distribution's function, on the part of it that lies below `most`.
    drawn = -mean * np.log1p(-rng.random(count) * -np.expm1(-most / mean))
    lengths: Ints = np.clip(np.ceil(drawn), 1, most).astype(np.int64)
    return lengths
