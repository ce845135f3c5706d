"""Leave out most of a long load's calm stretches: what happens in them is the same again and again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadtest.simulate.arrivals import Times
from loadtest.simulate.lengths import Ints

STRETCH_S = 30.0
_CALM = 0.5
"""Of what the pods can do: no second of a calm stretch brings more."""
_HELD_S = 0.1
"""Of work, at the most, is still held where a stretch may be left out."""

Weights = npt.NDArray[np.float64]


class Stretches:
    """The stretches of a load, each of which is busy, calm, or calm and left out; a share of the calm ones stays.

    What is left out still counts as demand. Those that stay stand for it: see `weights`.
    """

    def __init__(self, share: float, times_s: Times, lengths: Ints, rng: np.random.Generator) -> None:
        count = 1 + int(times_s[-1] // STRETCH_S) if len(times_s) else 1
        seconds = np.bincount(times_s.astype(np.int64), lengths, minlength=int(count * STRETCH_S))
        self._peaks: list[float] = seconds.reshape(count, -1).max(axis=1).tolist()
        self._sizes = np.bincount((times_s // STRETCH_S).astype(np.int64), minlength=count)
        self._stays: list[bool] = (rng.random(count) < share).tolist()
        self._calm = np.zeros(count, dtype=np.bool_)
        self._left_out = np.zeros(count, dtype=np.bool_)

    def leaves_out(self, number: int, held_tokens: int, tokens_per_s: float) -> bool:
        """Whether a stretch that begins now is not simulated, given what waits and what the pods can do."""
        calm = held_tokens <= _HELD_S * tokens_per_s and self._peaks[number] <= _CALM * tokens_per_s
        self._calm[number] = calm
        first = not (self._calm & ~self._left_out)[:number].any()
        self._left_out[number] = calm and not self._stays[number] and not first
        return bool(self._left_out[number])

    def weights(self, came_s: Times) -> Weights:
        """How many queries each of these stands for, which came in stretches that were simulated."""
        stays = self._calm & ~self._left_out
        calm, simulated = self._sizes[self._calm].sum(), self._sizes[stays].sum()
        of_stretch = np.where(stays, calm / max(1, simulated), 1.0)
        found: Weights = of_stretch[(came_s // STRETCH_S).astype(np.int64)]
        return found
