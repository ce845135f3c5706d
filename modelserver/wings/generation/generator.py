"""An engine that generates, as the model server drives it: sequences that gain tokens step by step.

Embeddings may share its steps (wing `both`): one is then a sequence that ends with its prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from modelserver.engines.engine import EngineFacts
from protos.modelserver.v1 import modelserver_pb2 as pb

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of a sequence's new tokens: ids and logarithms [tokens, width], each token first; ranks [tokens] of those."""

    token_ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The new tokens that one step gave one sequence. `finished`: these are its last ones.

    `length`: it reached max_tokens or the model's limit; otherwise it stopped. `stop_tokens`: of its last tokens, how
    many are not text. `vector`: of an embedding, float32 [dimensions], not normalised; then the tokens are meaningless.
    `broken`: the engine's scores of its next token are not numbers, so that the token means nothing.
    """

    name: str
    token_ids: Sequence[int]
    finished: bool = False
    length: bool = False
    stop_tokens: int = 0
    logprobs: Logprobs | None = None
    vector: Vector | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The work of the last step: prompt tokens of generations, sequences that decoded, tokens of embeddings.

    `by_name`: the tokens of each sequence and embedding.
    """

    prefill_tokens: int
    decoding: int
    embedding_tokens: int = 0
    by_name: Mapping[str, int] = field(default_factory=dict[str, int])

    def shares_s(self, duration_s: float) -> dict[str, float]:
        """The part of a step of this duration that each sequence and embedding took, by its tokens."""
        each_s = duration_s / max(1, sum(self.by_name.values()))
        return {name: tokens * each_s for name, tokens in self.by_name.items()}


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The work that an engine holds between two steps.

    `decoding`: generations whose prompt is computed. `begun`: tokens left of each prompt that is computed in part.
    `waiting_tokens`: of prompts that are not begun. `embeddings`: tokens left of each embedding.
    """

    decoding: int = 0
    begun: Sequence[int] = ()
    waiting_tokens: int = 0
    embeddings: Sequence[int] = ()

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of generations that are not computed yet."""
        return sum(self.begun) + self.waiting_tokens


class Generator(Protocol):
    """One loaded model that generates. Everything is called on the thread that built it.

    One that embeds as well (wing `both`) counts generations and embeddings apart in `running` and `load`.
    """

    @property
    def facts(self) -> EngineFacts: ...

    @property
    def running(self) -> int:
        """Generations that hold keys and values."""
        ...

    @property
    def load(self) -> EngineLoad: ...

    @property
    def free_kv_tokens(self) -> int:
        """Tokens whose keys and values fit the free KV cache."""
        ...

    @property
    def has_work(self) -> bool: ...

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling, turn_s: float = 0.0) -> None:
        """Start a sequence after `token_ids`, all of them valid. Raises ValueError for a parameter out of range.

        Of the sequences that wait for their first step, those with the least `turn_s` are first; equal ones in the
        order of arrival.
        """
        ...

    def abort(self, names: Collection[str]) -> None:
        """Forget sequences, and free their KV cache at once; unknown names are ignored."""
        ...

    def discard(self, names: Collection[str]) -> None:
        """Forget the sequences of a step that raised, the only ones that ran. Raises EngineBroken."""
        ...

    def limit(self, step_tokens: int, sequences: int, prompt_part: int = 0) -> None:
        """Limit the next steps: tokens, generations at once, and tokens of one prompt (0: all of them)."""
        ...

    def preempt(self) -> None:
        """Preempt every generation; each resumes with the tokens that it has."""
        ...

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        """Compute one step. Raises whatever the engine raises."""
        ...

    def recover(self) -> None:
        """Forget every sequence after a step that raised. Raises EngineBroken if the engine works no longer."""
        ...

    def close(self) -> None: ...
