"""An engine without a model, for load tests and fault tests: known speed, answers that follow from the ids alone.

A vector's components are a hash of the ids of the query, or of a span of it, in their order, each in [-1, 1). A score
is half of one plus 1: in [0, 1). Scores of several labels do not sum to 1.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from modelserver.engines.engine import EngineFacts, IdArray, Matrix, Spans
from modelserver.errors import EngineBroken, device_errors

_MIX = np.uint64(0x9E3779B97F4A7C15)
_EXIT_CODE = 70  # EX_SOFTWARE, which no other exit of this process has
_FOREVER_S = 1e6  # eleven days
_STALL_S = 3.0  # a late step, far below the 120 s after which the watch ends the process
LIES: Mapping[str, float] = {"nan": np.nan, "nan_row": np.nan, "zeros": 0.0}
PoisonMode = Literal["error", "exit", "break", "stall", "hang", "lose", "nan", "nan_row", "zeros"]


@dataclass(frozen=True, slots=True)
class Poison:
    """The cause and the kind of failing steps: a token id, more tokens than `above_tokens`, or chance.

    `exists`: only while this file does; None: always. A step that lies (`nan`, `nan_row`, `zeros`) raises nothing: the
    rows of queries with the token id are wrong, or if there is no such id every row, or its first one.
    """

    token_id: int | None
    mode: PoisonMode
    above_tokens: int | None = None
    share: float = 0.0
    exists: Path | None = None

    def is_in(self, token_ids: IdArray) -> bool:
        """Whether this step is to fail."""
        return (self.exists is None or self.exists.exists()) and (
            (self.token_id is not None and bool((token_ids == self.token_id).any()))
            or (self.above_tokens is not None and token_ids.size > self.above_tokens)
            or random.random() < self.share  # noqa: S311 - no secret
        )

    @property
    def lies(self) -> bool:
        return self.mode in LIES

    def lie(self, matrix: Matrix, token_ids: IdArray, rows_of: IdArray) -> Matrix:
        """The rows of a step that is to lie; `rows_of` int32 [tokens]: the row of each token."""
        wrong = np.zeros(len(matrix), np.bool_)
        if self.token_id is not None:
            wrong[rows_of[token_ids == self.token_id]] = True
        else:
            wrong[: 1 if self.mode == "nan_row" else None] = True
        return np.where(wrong[:, None], np.float32(LIES[self.mode]), matrix)

    def strike(self, sleep: Callable[[float], None]) -> None:
        """Make the step fail in this way; a stalled step is only late."""
        if self.mode == "stall":
            sleep(_STALL_S)
            return
        if self.mode == "exit":
            os._exit(_EXIT_CODE)
        if self.mode == "hang":
            sleep(_FOREVER_S)
        if self.mode == "break":
            raise EngineBroken("the poison token id is in this step")
        with device_errors():
            if self.mode == "lose":
                raise AcceleratorError("CUDA error: device-side assert triggered")
            raise RuntimeError("the poison token id is in this step")


class AcceleratorError(RuntimeError):
    """Named as torch's error of a GPU that is lost."""


@dataclass(frozen=True, slots=True)
class SyntheticEngine:
    """Sleeps `fixed_s + per_token_s · tokens` per step and answers with pseudo-random vectors or scores.

    They depend on a query's ids and their order only.
    """

    facts: EngineFacts
    fixed_s: float
    per_token_s: float
    poison: Poison | None = None
    sleep: Callable[[float], None] = time.sleep
    close_s: float = 0.0

    def step_s(self, tokens: int) -> float:
        return self.fixed_s + self.per_token_s * tokens

    def prepare(
        self,
        token_ids: IdArray,
        lengths: IdArray,
        second_segments: IdArray | None = None,
        spans: Spans | None = None,
    ) -> SyntheticStep:
        del second_segments
        return SyntheticStep(self, token_ids, lengths, spans)

    def recover(self) -> None:
        """A step that raised leaves nothing behind."""

    def close(self) -> None:
        """Take as long as it is set to; nothing is held."""
        self.sleep(self.close_s)


@dataclass(frozen=True, slots=True)
class SyntheticStep:
    """One step of the synthetic engine."""

    engine: SyntheticEngine
    token_ids: IdArray
    lengths: IdArray
    spans: Spans | None = None

    def execute(self) -> Matrix:
        """Take as long as a real step would; raises RuntimeError where it is to fail."""
        poison = self.engine.poison
        fails = poison is not None and poison.is_in(self.token_ids)
        if poison is not None and fails and not poison.lies:
            poison.strike(self.engine.sleep)
        self.engine.sleep(self.engine.step_s(self.token_ids.size))
        facts = self.engine.facts
        compute = vectors if facts.scoring is None else scores
        ids, sizes = self.token_ids, self.lengths
        if self.spans is not None:
            places, sizes = self.spans.tokens(self.lengths)
            ids = ids[places]
        matrix = compute(ids, sizes, facts.dimensions)
        if poison is None or not fails or not poison.lies:
            return matrix
        return poison.lie(matrix, ids, np.repeat(np.arange(sizes.size, dtype=np.int32), sizes))


def synthetic_facts(
    *,
    version: str = "1",
    dimensions: int,
    max_input_tokens: int,
    vocabulary_size: int,
    step_tokens: int,
    step_queries: int,
) -> EngineFacts:
    return EngineFacts(
        kind="synthetic",
        version=version,
        dtype="float32",
        device="none",
        on_cpu=True,
        dimensions=dimensions,
        max_input_tokens=max_input_tokens,
        vocabulary_size=vocabulary_size,
        step_token_capacity=step_tokens,
        step_query_capacity=step_queries,
        pools_spans=True,
    )


def vectors(token_ids: IdArray, lengths: IdArray, dimensions: int) -> Matrix:
    """One vector per query, float32 [queries, dimensions], components in [-1, 1), of its ids and their order."""
    ends = np.cumsum(lengths)
    position = np.arange(token_ids.size) - np.repeat(ends - lengths, lengths)
    tokens = _mixed(token_ids.astype(np.uint64) + (position.astype(np.uint64) << np.uint64(32)))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(tokens, dtype=np.uint64)))
    seeds = _mixed(sums[ends] - sums[ends - lengths])
    bits = _mixed(seeds[:, None] + np.arange(dimensions, dtype=np.uint64)[None, :] * _MIX)
    return (bits >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1.0)


def scores(token_ids: IdArray, lengths: IdArray, labels: int) -> Matrix:
    """One score per query and label, float32 [queries, labels] in [0, 1), of its ids and their order."""
    return (vectors(token_ids, lengths, labels) + np.float32(1.0)) / np.float32(2.0)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: every input bit flips about half of the output's."""
    values = values + _MIX
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
