"""A model server that generates, as the aggregator sees it: a batch of prompts ends with their first tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from typing_extensions import override

from aggregator.scheduler.budget.controller import BudgetController
from aggregator.scheduler.replica import Replica, ReplicaPolicy
from protos.modelserver.v1.curve import Curve

_ID_BYTES = 4
_PREFIX_TOKENS = (64, 256)
"""Of beginnings that are remembered: a conversation's first turn, as a rule, and more of a longer one."""
_MOST_PREFIXES = 1024


LENGTH_SHARE = 0.02
"""Of each text that ends, in what is known of texts."""


class MeanLength:
    """How many new tokens texts of one revision had lately, in the mean."""

    def __init__(self) -> None:
        self.new_tokens = 64.0  # until texts have ended

    def observe(self, new_tokens: int) -> None:
        """A text has ended."""
        self.new_tokens += LENGTH_SHARE * (new_tokens - self.new_tokens)


class GeneratingReplica(Replica):
    """Takes a batch of prompts while it has room for their sequences and for the keys and values of their tokens.

    `sequences` of ours are under way; what others run there shows in the room that is left. The last batch had its
    first tokens at `first_tokens_s`.
    """

    def __init__(
        self,
        name: str,
        curve: Curve | None,
        token_budget: int,
        policy: ReplicaPolicy,
        budget_controller: BudgetController | None = None,
        *,
        kv_tokens: int,
        max_sequences: int,
        length: MeanLength | None = None,
        per_sequence_s: float = 0.0,
        capacity: int = 0,
    ) -> None:
        """`capacity`: tokens of prompts that one batch may hold; 0: the budget. `length`: of its revision."""
        self.sequences = 0
        self._per_sequence_s = per_sequence_s
        super().__init__(name, curve, token_budget, policy, budget_controller, capacity=capacity)
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
        """Sequences that may begin now."""
        return max(0, self._max_sequences - self.sequences - self._foreign_sequences)

    @property
    def texts_per_s(self) -> float:
        """Texts that are likely to end each second, as many as decode now and as long as they were lately."""
        step_s = self.step_time_s(1) + self._per_sequence_s * self.sequences
        return self.sequences / (self._length.new_tokens * step_s)

    @property
    def room_tokens(self) -> int:
        """Tokens of prompts that may begin now: what is free, less what is on its way and what will grow."""
        growing = self._length.new_tokens / 2 * self.sequences
        return max(0, int(self._free_kv_tokens - self.tokens_out - growing))

    @override
    def finish_s(self, tokens: int, now_s: float) -> float:
        """When prompts of so many tokens, sent now, are predicted to have their first ones, beside what decodes."""
        return super().finish_s(tokens, now_s) + self._per_sequence_s * self.sequences

    def began(self) -> None:
        """A sequence is under way."""
        self.sequences += 1

    def finished(self) -> None:
        """One of them is not any more."""
        self.sequences -= 1

    def observe_load(self, free_kv_tokens: int, running: int) -> None:
        """What the server said of itself after a step."""
        self._free_kv_tokens = free_kv_tokens
        self._foreign_sequences = max(0, running - self.sequences)

    @override
    def due_s(self, now_s: float, queued_tokens: float = inf) -> float:
        """When it takes its next batch; `inf` while it has no room: what ends there makes some."""
        if self.sequences and (not self.seats or not self.room_tokens):
            return inf
        return super().due_s(now_s, queued_tokens)

    @override
    def batch_tokens(
        self, queued_tokens: int, backlog_tokens: int = 0, within_s: float = 0.0, share_tokens: int = 0
    ) -> int:
        """Tokens of prompts that the next batch may hold here: its share of what waits, however long that takes.

        How many of them a step takes the server decides. Sent in parts, the rest would wait for first tokens.
        """
        most = max(self.token_budget, min(share_tokens, self.largest))
        return max(1, min(most, self.room_tokens))

    @override
    def note_prompts(self, prompts: Iterable[bytes]) -> None:
        """Their keys and values are likely to be here from now on."""
        for prompt in prompts:
            for key in _prefixes(prompt):
                self._seen.pop(key, None)
                self._seen[key] = None
        while len(self._seen) > _MOST_PREFIXES:
            del self._seen[next(iter(self._seen))]

    @override
    def known_tokens(self, prompt: bytes) -> int:
        """As many tokens of its beginning were here lately, at the least."""
        known = [len(key) // _ID_BYTES for key in _prefixes(prompt) if key in self._seen]
        return max(known, default=0)


def _prefixes(prompt: bytes) -> list[bytes]:
    """Its beginnings that are remembered."""
    return [prompt[: _ID_BYTES * tokens] for tokens in _PREFIX_TOKENS if len(prompt) >= _ID_BYTES * tokens]


def first_token_in_s(replicas: Collection[Replica], ahead: int, tokens: int, now_s: float) -> float:
    """Seconds until a prompt of so many tokens is likely to have its first new one, `ahead` others being before it.

    0 where it cannot be told: some of the replicas do not generate, or have not said lately how they stand.
    """
    generating = [replica for replica in replicas if isinstance(replica, GeneratingReplica)]
    if len(generating) < len(replicas) or not all(replica.has_evidence(now_s) for replica in generating):
        return 0.0
    ends_first = ahead + 1 - sum(replica.seats for replica in generating)
    texts_per_s = sum(replica.texts_per_s for replica in generating)
    if ends_first > 0 and not texts_per_s:
        return 0.0
    waits_s = ends_first / texts_per_s if ends_first > 0 else 0.0
    return waits_s + min((replica.finish_s(tokens, now_s) - now_s for replica in generating), default=0.0)
