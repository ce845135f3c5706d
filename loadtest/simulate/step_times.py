"""Steps as they were elsewhere, held against a curve, to be taken again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protos.modelserver.v1.curve import Curve

_CLASSES, _LEAST = 8, 10
"""Of sizes, and the steps that a class needs: of fewer, all are one."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long steps took in times of what a curve says: those of about `tokens[i]` tokens usually `usual[i]`.

    `factors`: in the order of the steps, what each took of the usual for its size; they are taken over and over.
    """

    tokens: tuple[float, ...]
    usual: tuple[float, ...]
    factors: tuple[float, ...]

    def usual_factor(self, tokens: int) -> float:
        """For a step of so many tokens; between sizes along a line, beyond them as at the last."""
        return float(np.interp(tokens, self.tokens, self.usual))


def step_times(steps: Sequence[tuple[int, float]], curve: Curve) -> StepTimes:
    """From the tokens and seconds of steps in their order. Raises ValueError without any.

    They are put in eight classes of as many steps, by size; the usual factor of a class is its median.
    """
    if not steps:
        raise ValueError("no steps to take times from")
    tokens = np.array([size for size, _ in steps], np.float64)
    factors = np.array([duration_s / curve.time_s(size) for size, duration_s in steps])
    classes = np.array_split(np.argsort(tokens, kind="stable"), max(1, min(_CLASSES, len(steps) // _LEAST)))
    sizes = np.array([tokens[members].mean() for members in classes])
    usual = np.array([np.median(factors[members]) for members in classes])
    return StepTimes(
        tuple(sizes.tolist()), tuple(usual.tolist()), tuple((factors / np.interp(tokens, sizes, usual)).tolist())
    )
