"""A model server that generates, as the aggregator sees it: a batch of prompts ends with their first tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from hashlib import blake2b
from math import inf

from typing_extensions import override

from aggregator.scheduler.curve import Curve
from aggregator.scheduler.replica import Replica, ReplicaPolicy
from aggregator.scheduler.work_item import ID_BYTES, Beside, Priority

_PREFIX_TOKENS = (64, 256, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Lengths of the prefixes that are remembered: the longer ones tell chats apart that share a system prompt."""
_MOST_PREFIXES = 4096  # bounds the memory: the prefix added or seen longest ago is forgotten
_MOST_PROMPTS = 64
"""Whose prefixes are kept: one is compared with those of each replica, and then sent."""


LENGTH_SHARE = 0.02
"""The weight of each generation that ends, in the moving averages."""


class MeanLength:
    """The moving average of new tokens per generation of one model revision."""

    def __init__(self) -> None:
        self.new_tokens = 64.0  # until generations have ended

    def observe(self, new_tokens: int) -> None:
        self.new_tokens += LENGTH_SHARE * (new_tokens - self.new_tokens)


class GeneratingReplica(Replica):
    """Takes a batch of prompts while it has room for their sequences and for the keys and values of their tokens.

    `sequences` counts those of this aggregator; those of others show in the reported load. The last batch got its
    first tokens at `first_tokens_s`.
    """

    def __init__(
        self,
        name: str,
        curve: Curve | None,
        token_budget: int,
        policy: ReplicaPolicy,
        *,
        kv_tokens: int,
        max_sequences: int,
        length: MeanLength | None = None,
        per_sequence_s: float = 0.0,
        capacity: int = 0,
    ) -> None:
        """`capacity`: tokens of prompts that one batch may hold; 0: the budget. `length`: of its revision.

        `per_sequence_s`: the seconds that each decoding sequence adds to a step.
        """
        self.sequences = 0
        super().__init__(name, curve, token_budget, policy, capacity=capacity)
        self._per_sequence_s = per_sequence_s
        self.first_tokens_s = -inf
        self.kv_tokens = kv_tokens
        self._max_sequences = max_sequences
        self._free_kv_tokens = kv_tokens
        self._foreign_sequences = 0
        self._length = length or MeanLength()
        self._seen: dict[bytes, None] = {}

    @property
    @override
    def seats(self) -> int:
        return max(0, self._max_sequences - self.sequences - self._foreign_sequences)

    @property
    def generations_per_s(self) -> float:
        """The expected number of generations that end per second: this many decode now, with the recent mean length."""
        step_s = self.step_time_s(1) + self._per_sequence_s * self.sequences
        return self.sequences / (self._length.new_tokens * step_s)

    @property
    def room_tokens(self) -> int:
        """Tokens of prompts that may begin now: the free ones, less prompts on their way and growing sequences."""
        growing = self._length.new_tokens / 2 * self.sequences
        return max(0, int(self._free_kv_tokens - self.tokens_out - growing))

    @override
    def finish_s(self, tokens: int, now_s: float, priority: Priority = Priority.BACKGROUND) -> float:
        """The predicted time of the first tokens if this many prompt tokens are sent now, beside what decodes."""
        return super().finish_s(tokens, now_s, priority) + self._per_sequence_s * self.sequences

    def began(self) -> None:
        self.sequences += 1

    def finished(self) -> None:
        self.sequences -= 1

    def observe_load(self, free_kv_tokens: int, running: int) -> None:
        self._free_kv_tokens = free_kv_tokens
        self._foreign_sequences = max(0, running - self.sequences)

    @override
    def due_s(self, now_s: float, priority: Priority = Priority.BACKGROUND, share_tokens: float = inf) -> float:
        """When it takes its next batch; `inf` while it has no room until a sequence ends.

        However few prompts wait, they are sent as early as many: no report says how long the engine was idle.
        """
        del share_tokens
        if self.sequences and (not self.seats or not self.room_tokens):
            return inf
        return super().due_s(now_s, priority)

    @override
    def batch_tokens(
        self,
        queued_tokens: int,
        backlog_tokens: int = 0,
        within_s: float = 0.0,
        share_tokens: int = 0,
        beside: Beside = Beside.NOBODY,
    ) -> int:
        """Tokens of prompts that the next batch may hold here: its share of what waits, however long that takes.

        How many of them a step takes the server decides. Sent in parts, the rest would wait for first tokens.
        """
        most = max(self.token_budget, min(share_tokens, self.largest))
        return max(1, min(most, self.room_tokens))

    @override
    def note_prompts(self, prompts: Iterable[bytes]) -> None:
        """Remember the prompts: the server caches their keys and values."""
        for prompt in prompts:
            for _, key in _prefixes(prompt):
                self._seen.pop(key, None)
                self._seen[key] = None
        while len(self._seen) > _MOST_PREFIXES:
            del self._seen[next(iter(self._seen))]

    @override
    def known_tokens(self, prompt: bytes) -> int:
        """Lower bound of the prompt tokens that this server still caches."""
        known = [tokens for tokens, key in _prefixes(prompt) if key in self._seen]
        return max(known, default=0)


@lru_cache(_MOST_PROMPTS)
def _prefixes(prompt: bytes) -> tuple[tuple[int, bytes], ...]:
    """The lengths of the prompt's prefixes, and a digest of each."""
    digest = blake2b(digest_size=16)
    found: list[tuple[int, bytes]] = []
    start = 0
    for tokens in _PREFIX_TOKENS:
        end = ID_BYTES * tokens
        if end > len(prompt):
            break
        digest.update(prompt[start:end])
        found.append((tokens, digest.digest()))
        start = end
    return tuple(found)


def first_token_in_s(replicas: Collection[Replica], ahead: int, tokens: int, now_s: float) -> float:
    """The expected seconds until a prompt of `tokens` tokens gets its first new one, with `ahead` others before it.

    0 if it is unknown: some replicas do not generate, or have no recent evidence.
    """
    generating = [replica for replica in replicas if isinstance(replica, GeneratingReplica)]
    if len(generating) < len(replicas) or not all(replica.has_evidence(now_s) for replica in generating):
        return 0.0
    ends_first = ahead + 1 - sum(replica.seats for replica in generating)
    waits_s = 0.0
    if ends_first > 0:
        generations_per_s = sum(replica.generations_per_s for replica in generating)
        if not generations_per_s:
            return 0.0
        waits_s = ends_first / generations_per_s
    return waits_s + min(replica.finish_s(tokens, now_s) - now_s for replica in generating)
