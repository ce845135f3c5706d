"""What the model server asks of an engine: whole steps of embeddings, or sequences that gain tokens step by step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from protos.modelserver.v1 import modelserver_pb2 as pb

IdArray = npt.NDArray[np.int32]
Matrix = npt.NDArray[np.float32]


class Task(StrEnum):
    """What a model is served for."""

    EMBED = "embed"
    GENERATE = "generate"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine is, as `Describe` publishes it.

    A step holds at most `step_token_capacity` tokens and `step_query_capacity` queries, each of 1 to
    `max_input_tokens` ids in [0, `vocabulary_size`). An engine that generates runs at most `step_query_capacity`
    sequences at once, whose keys and values take at most `kv_tokens` tokens; its `dimensions` are 0.
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
    task: Task = Task.EMBED
    kv_tokens: int = 0


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


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of a sequence's new tokens: ids and logarithms [tokens, width], each token first; ranks [tokens] of those."""

    token_ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NewTokens:
    """What one step gave one sequence. `finished`: these are its last; `cut`: for want of room, else it stopped.

    `stripped`: how many of the tokens only say that it stopped, and are no text.
    """

    name: str
    token_ids: Sequence[int]
    finished: bool = False
    cut: bool = False
    stripped: int = 0
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What the last step computed: tokens of prompts, and sequences that gained a token without."""

    prompt_tokens: int
    decoding: int


class Generator(Protocol):
    """One loaded model that generates. Everything is called on the thread that built it."""

    @property
    def facts(self) -> EngineFacts:
        """What it is."""
        ...

    @property
    def running(self) -> int:
        """Sequences that hold keys and values."""
        ...

    @property
    def decoding(self) -> int:
        """Those of them whose prompt is computed."""
        ...

    @property
    def waiting_tokens(self) -> int:
        """Tokens of prompts, running or not, that are not computed yet."""
        ...

    @property
    def free_kv_tokens(self) -> int:
        """Tokens whose keys and values there is room for."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling) -> None:
        """Start a sequence after `token_ids`, all of them valid. Raises ValueError for a parameter out of range."""
        ...

    def abort(self, names: Collection[str]) -> None:
        """Forget sequences, and free what they hold at once; unknown ones are ignored."""
        ...

    def limit(self, step_tokens: int, sequences: int) -> None:
        """What the next steps may hold at the most."""
        ...

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        """Compute one step. Raises whatever the engine raises."""
        ...

    def recover(self) -> None:
        """Forget every sequence after a step that raised. Raises EngineBroken when the engine cannot go on."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...
