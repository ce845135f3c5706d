"""An engine without a model that generates: each token follows from those before it, each step takes the set time."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from modelserver.engines.engine import EngineFacts, Logprobs, NewTokens, StepLoad
from modelserver.engines.synthetic import Poison
from modelserver.errors import StepFailed
from protos.modelserver.v1 import modelserver_pb2 as pb


@dataclass(slots=True)
class _Sequence:
    token_ids: list[int]
    sampling: pb.Sampling
    prompt_left: int
    digest: int
    generated: int = 0


@dataclass(slots=True)
class SyntheticGenerator:
    """What it is, the time of a step and of each of its tokens in seconds, and a token id that it chokes on."""

    facts: EngineFacts
    fixed_s: float
    per_token_s: float
    poison: Poison | None = None
    sleep: Callable[[float], None] = time.sleep
    _sequences: dict[str, _Sequence] = field(default_factory=dict[str, _Sequence])
    _step_tokens: int = 0
    _most: int = 0

    def __post_init__(self) -> None:
        self.limit(self.facts.step_token_capacity, self.facts.step_query_capacity)

    @property
    def running(self) -> int:
        """Sequences that hold keys and values."""
        return min(len(self._sequences), self._most)

    @property
    def decoding(self) -> int:
        """Those of them whose prompt is computed."""
        return sum(not sequence.prompt_left for sequence in self._active())

    @property
    def waiting_tokens(self) -> int:
        """Tokens of prompts that are not computed yet."""
        return sum(sequence.prompt_left for sequence in self._sequences.values())

    @property
    def free_kv_tokens(self) -> int:
        """Tokens whose keys and values there is room for."""
        return max(0, self.facts.kv_tokens - sum(len(sequence.token_ids) for sequence in self._active()))

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences)

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling) -> None:
        """Start a sequence."""
        digest = zlib.crc32(_bytes(token_ids), sampling.seed & 0xFFFFFFFF)
        self._sequences[name] = _Sequence(list(token_ids), sampling, len(token_ids), digest)

    def abort(self, names: Collection[str]) -> None:
        """Forget sequences."""
        for name in names:
            self._sequences.pop(name, None)

    def limit(self, step_tokens: int, sequences: int) -> None:
        """What the next steps may hold at the most."""
        self._step_tokens, self._most = step_tokens, sequences

    def step(self) -> tuple[Sequence[NewTokens], StepLoad]:
        """Compute one step."""
        decoding = self.decoding
        left = max(1, self._step_tokens - decoding)
        prompt_tokens = 0
        ready: list[str] = []
        for name, sequence in islice(self._sequences.items(), self._most):
            self._choke(sequence)
            part = min(sequence.prompt_left, left)
            sequence.prompt_left -= part
            left -= part
            prompt_tokens += part
            if not sequence.prompt_left:
                ready.append(name)
        self.sleep(self.fixed_s + self.per_token_s * (prompt_tokens + decoding))
        return [self._next(name) for name in ready], StepLoad(prompt_tokens, decoding)

    def recover(self) -> None:
        """Forget every sequence."""
        self._sequences.clear()

    def close(self) -> None:
        """Nothing is held."""

    def _active(self) -> list[_Sequence]:
        return list(islice(self._sequences.values(), self._most))

    def _choke(self, sequence: _Sequence) -> None:
        if self.poison is None or self.poison.token_id not in sequence.token_ids:
            return
        if self.poison.mode == "exit":
            os._exit(1)
        raise StepFailed(f"token id {self.poison.token_id} is the poison")

    def _next(self, name: str) -> NewTokens:
        sequence = self._sequences[name]
        sampling = sequence.sampling
        token = sequence.digest % self.facts.vocabulary_size
        sequence.token_ids.append(token)
        sequence.digest = zlib.crc32(_bytes((token,)), sequence.digest)
        sequence.generated += 1
        stopped = token in sampling.stop_token_ids and sequence.generated >= sampling.min_tokens
        cut = sequence.generated >= sampling.max_tokens or len(sequence.token_ids) >= self.facts.max_input_tokens
        if stopped or cut:
            del self._sequences[name]
        logprobs = None
        if sampling.HasField("logprobs"):
            logprobs = Logprobs(np.array([[token]], np.int32), np.zeros((1, 1), np.float32), np.ones(1, np.int32))
        return NewTokens(name, [token], stopped or cut, cut and not stopped, int(stopped), logprobs)


def _bytes(token_ids: Sequence[int]) -> bytes:
    return np.array(token_ids, np.int32).tobytes()
