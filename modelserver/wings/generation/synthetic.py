"""Generation without a model: known speed, and each token of a text follows from those before it."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from modelserver.engines.engine import EngineFacts
from modelserver.engines.synthetic import Poison
from modelserver.wings.generation.generator import EngineLoad, Logprobs, NewTokens, StepLoad
from protos.modelserver.v1 import modelserver_pb2 as pb


@dataclass(slots=True)
class SyntheticSequence:
    """A sequence, or an embedding, of which `prompt_left` tokens are not computed yet."""

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
    """Its facts, the time of a step and of each of its tokens in seconds, and a token id that makes it fail.

    `sequences` may hold embeddings, which the wing `both` adds.
    """

    facts: EngineFacts
    fixed_s: float
    per_token_s: float
    poison: Poison | None = None
    sleep: Callable[[float], None] = time.sleep
    close_s: float = 0.0
    sequences: dict[str, SyntheticSequence] = field(default_factory=dict[str, SyntheticSequence])
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
        generations = {name: each for name, each in self.sequences.items() if not each.embeds}
        begun = [each for name, each in generations.items() if name in active and each.begun and each.prompt_left]
        return EngineLoad(
            decoding=sum(not each.prompt_left for name, each in generations.items() if name in active),
            begun=[each.prompt_left for each in begun],
            waiting_tokens=sum(each.prompt_left for each in generations.values()) - sum(map(_left, begun)),
            embeddings=[each.prompt_left for each in self.sequences.values() if each.embeds],
        )

    @property
    def free_kv_tokens(self) -> int:
        return max(0, self.facts.kv_tokens - sum(len(sequence.token_ids) for sequence in self._active().values()))

    @property
    def has_work(self) -> bool:
        return bool(self.sequences)

    def add(self, name: str, token_ids: Sequence[int], sampling: pb.Sampling, turn_s: float = 0.0) -> None:
        digest = zlib.crc32(_bytes(token_ids), sampling.seed & 0xFFFFFFFF)
        self.sequences[name] = SyntheticSequence(list(token_ids), sampling, len(token_ids), digest, turn_s=turn_s)

    def abort(self, names: Collection[str]) -> None:
        for name in names:
            self.sequences.pop(name, None)

    def discard(self, names: Collection[str]) -> None:
        self.abort(names)

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
        return [self.next_of(name) for name in ready], StepLoad(prefill_tokens, decoding, embedding_tokens, by_name)

    def recover(self) -> None:
        self.sequences.clear()

    def close(self) -> None:
        """Take as long as it is set to; nothing is held."""
        self.sleep(self.close_s)

    def _active(self) -> dict[str, SyntheticSequence]:
        """Embeddings, and as many generations as may run."""
        generations = sorted(
            (item for item in self.sequences.items() if not item[1].embeds),
            key=lambda item: (not item[1].begun, item[1].turn_s),
        )
        embeddings = (item for item in self.sequences.items() if item[1].embeds)
        return dict([*islice(generations, self._most), *embeddings])

    def _choke(self, sequence: SyntheticSequence) -> None:
        if self.poison is not None and not self.poison.lies and self.poison.token_id in sequence.token_ids:
            self.poison.strike(self.sleep)

    def lied_to(self, sequence: SyntheticSequence) -> bool:
        ids = np.array(sequence.token_ids, np.int32)
        return self.poison is not None and self.poison.lies and self.poison.is_in(ids)

    def next_of(self, name: str) -> NewTokens:
        sequence = self.sequences[name]
        if self.lied_to(sequence):
            return NewTokens(name, [0], broken=True)
        sampling = sequence.sampling
        token = sequence.digest % self.facts.vocabulary_size
        sequence.token_ids.append(token)
        sequence.digest = zlib.crc32(_bytes((token,)), sequence.digest)
        sequence.generated += 1
        stopped = token in sampling.stop_token_ids and sequence.generated >= sampling.min_tokens
        length = sequence.generated >= sampling.max_tokens or len(sequence.token_ids) >= self.facts.context_tokens
        if stopped or length:
            del self.sequences[name]
        logprobs = None
        if sampling.HasField("logprobs"):
            logprobs = Logprobs(np.array([[token]], np.int32), np.zeros((1, 1), np.float32), np.ones(1, np.int32))
        return NewTokens(name, [token], stopped or length, length and not stopped, int(stopped), logprobs)


def _left(sequence: SyntheticSequence) -> int:
    return sequence.prompt_left


def _bytes(token_ids: Sequence[int]) -> bytes:
    return np.array(token_ids, np.int32).tobytes()
