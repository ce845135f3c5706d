"""Engines without a model, for load tests and fault tests: known speed, answers that follow from the ids alone.

A vector's components are a hash of the ids of the query, or of a span of it, in their order, each in [-1, 1). A score
is half of one plus 1: in [0, 1). Scores of several labels do not sum to 1. Of a text each token follows from those
before it.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from modelserver.engines.engine import EngineFacts, EngineLoad, IdArray, Logprobs, Matrix, NewTokens, Spans, StepLoad
from modelserver.errors import EngineBroken, device_errors
from protos.modelserver.v1 import modelserver_pb2 as pb

_MIX = np.uint64(0x9E3779B97F4A7C15)
_EXIT_CODE = 70  # EX_SOFTWARE, which no other exit of this process has
_FOREVER_S = 1e6  # eleven days
_STALL_S = 3.0  # a late step, far below the 120 s after which the watch ends the process
_LIES: Mapping[str, float] = {"nan": np.nan, "nan_row": np.nan, "zeros": 0.0}
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
        return self.mode in _LIES

    def lie(self, matrix: Matrix, token_ids: IdArray, rows_of: IdArray) -> Matrix:
        """The rows of a step that is to lie; `rows_of` int32 [tokens]: the row of each token."""
        wrong = np.zeros(len(matrix), np.bool_)
        if self.token_id is not None:
            wrong[rows_of[token_ids == self.token_id]] = True
        else:
            wrong[: 1 if self.mode == "nan_row" else None] = True
        return np.where(wrong[:, None], np.float32(_LIES[self.mode]), matrix)

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


@dataclass(slots=True)
class _Sequence:
    token_ids: list[int]
    sampling: pb.Sampling
    prompt_left: int
    digest: int
    embeds: bool = False
    begun: bool = False
    generated: int = 0
    turn_s: float = 0.0


@dataclass(slots=True)
class SyntheticGenerator:
    """Its facts, the time of a step and of each of its tokens in seconds, and a token id that makes it fail."""

    facts: EngineFacts
    fixed_s: float
    per_token_s: float
    poison: Poison | None = None
    sleep: Callable[[float], None] = time.sleep
    close_s: float = 0.0
    _sequences: dict[str, _Sequence] = field(default_factory=dict[str, _Sequence])
    _step_tokens: int = 0
    _most: int = 0
    _part: int = 0

    def __post_init__(self) -> None:
        self.limit(self.facts.step_token_capacity, self.facts.max_sequences)

    @property
    def running(self) -> int:
        return sum(not sequence.embeds for sequence in self._active().values())

    @property
    def load(self) -> EngineLoad:
        active = self._active()
        generations = {name: each for name, each in self._sequences.items() if not each.embeds}
        begun = [each for name, each in generations.items() if name in active and each.begun and each.prompt_left]
        return EngineLoad(
            decoding=sum(not each.prompt_left for name, each in generations.items() if name in active),
            begun=[each.prompt_left for each in begun],
            waiting_tokens=sum(each.prompt_left for each in generations.values()) - sum(map(_left, begun)),
            embeddings=[each.prompt_left for each in self._sequences.values() if each.embeds],
        )

    @property
    def free_kv_tokens(self) -> int:
        return max(0, self.facts.kv_tokens - sum(len(sequence.token_ids) for sequence in self._active().values()))

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling, turn_s: float = 0.0) -> None:
        digest = zlib.crc32(_bytes(token_ids), sampling.seed & 0xFFFFFFFF)
        self._sequences[name] = _Sequence(list(token_ids), sampling, len(token_ids), digest, turn_s=turn_s)

    def abort(self, names: Collection[str]) -> None:
        for name in names:
            self._sequences.pop(name, None)

    def discard(self, names: Collection[str]) -> None:
        self.abort(names)

    def embed(self, name: str, token_ids: Sequence[int]) -> None:
        self._sequences[name] = _Sequence(list(token_ids), pb.Sampling(), len(token_ids), 0, embeds=True)

    def limit(self, step_tokens: int, sequences: int, prompt_part: int = 0) -> None:
        self._step_tokens, self._most, self._part = step_tokens, sequences, prompt_part

    def preempt(self) -> None:
        """A generation that is not computed loses nothing."""

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        """Compute one step: sequences that have begun, then embeddings, then prompts."""
        decoding = self.load.decoding
        left = max(1, self._step_tokens - decoding)
        prefill_tokens = embedding_tokens = 0
        ready: list[str] = []
        by_name: dict[str, int] = {}
        active = sorted(self._active().items(), key=lambda item: (not item[1].begun, not item[1].embeds))
        for name, sequence in active:
            part = min(sequence.prompt_left, left, self._part or left)
            if sequence.prompt_left and not part:
                continue
            self._choke(sequence)
            by_name[name] = part or 1
            sequence.begun = True
            sequence.prompt_left -= part
            left -= part
            if sequence.embeds:
                embedding_tokens += part
            else:
                prefill_tokens += part
            if not sequence.prompt_left:
                ready.append(name)
        self.sleep(self.fixed_s + self.per_token_s * (prefill_tokens + embedding_tokens + decoding))
        return [self._next(name) for name in ready], StepLoad(prefill_tokens, decoding, embedding_tokens, by_name)

    def recover(self) -> None:
        self._sequences.clear()

    def close(self) -> None:
        """Take as long as it is set to; nothing is held."""
        self.sleep(self.close_s)

    def _active(self) -> dict[str, _Sequence]:
        """Embeddings, and as many generations as may run."""
        generations = sorted(
            (item for item in self._sequences.items() if not item[1].embeds),
            key=lambda item: (not item[1].begun, item[1].turn_s),
        )
        embeddings = (item for item in self._sequences.items() if item[1].embeds)
        return dict([*islice(generations, self._most), *embeddings])

    def _choke(self, sequence: _Sequence) -> None:
        if self.poison is not None and not self.poison.lies and self.poison.token_id in sequence.token_ids:
            self.poison.strike(self.sleep)

    def _lied_to(self, sequence: _Sequence) -> bool:
        ids = np.array(sequence.token_ids, np.int32)
        return self.poison is not None and self.poison.lies and self.poison.is_in(ids)

    def _next(self, name: str) -> NewTokens:
        sequence = self._sequences[name]
        if sequence.embeds:
            del self._sequences[name]
            ids = np.array(sequence.token_ids, np.int32)
            vector = vectors(ids, np.array([ids.size], np.int32), self.facts.dimensions)[0]
            if self.poison is not None and self._lied_to(sequence):
                vector = np.full_like(vector, _LIES[self.poison.mode])
            return NewTokens(name, [0], finished=True, length=True, vector=vector)
        if self._lied_to(sequence):
            return NewTokens(name, [0], broken=True)
        sampling = sequence.sampling
        token = sequence.digest % self.facts.vocabulary_size
        sequence.token_ids.append(token)
        sequence.digest = zlib.crc32(_bytes((token,)), sequence.digest)
        sequence.generated += 1
        stopped = token in sampling.stop_token_ids and sequence.generated >= sampling.min_tokens
        length = sequence.generated >= sampling.max_tokens or len(sequence.token_ids) >= self.facts.context_tokens
        if stopped or length:
            del self._sequences[name]
        logprobs = None
        if sampling.HasField("logprobs"):
            logprobs = Logprobs(np.array([[token]], np.int32), np.zeros((1, 1), np.float32), np.ones(1, np.int32))
        return NewTokens(name, [token], stopped or length, length and not stopped, int(stopped), logprobs)


def _left(sequence: _Sequence) -> int:
    return sequence.prompt_left


def _bytes(token_ids: Sequence[int]) -> bytes:
    return np.array(token_ids, np.int32).tobytes()
