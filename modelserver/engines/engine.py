"""What the model server asks of an engine: prepare a step on any thread, run it on the engine's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

IdArray = npt.NDArray[np.int32]
Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine is, as `Describe` publishes it.

    A step holds at most `step_token_capacity` tokens and `step_query_capacity` queries, each of 1 to
    `max_input_tokens` ids in [0, `vocabulary_size`).
    """

    kind: str
    version: str
    dtype: str
    device: str
    on_cpu: bool
    dimensions: int
    max_input_tokens: int
    vocabulary_size: int
    step_token_capacity: int
    step_query_capacity: int


class Step(Protocol):
    """One prepared engine step; it runs once."""

    def run(self) -> Matrix:
        """Compute the pooled, not normalised vectors, float32 [queries, dimensions], in the order given.

        Called on the engine's thread only. Raises whatever the engine raises.
        """
        ...


class Engine(Protocol):
    """One loaded model. Everything but `prepare` is called on the thread that built it."""

    @property
    def facts(self) -> EngineFacts:
        """What it is."""
        ...

    def prepare(self, token_ids: IdArray, lengths: IdArray) -> Step:
        """Make a step ready: `token_ids` int32 [Σ lengths] end to end, `lengths` int32 [queries], all valid.

        Called on any thread, also while another step runs, so it leaves the engine's state alone.
        """
        ...

    def recover(self) -> None:
        """Forget a step that raised. Raises EngineBroken when the engine cannot go on."""
        ...

    def peak_memory_bytes(self) -> int:
        """The most memory held so far: the device's on a GPU, else the process's."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


EngineFactory = Callable[[], Engine]
"""Builds an engine on the thread that calls it, which becomes the engine's own."""
