"""How many tokens of a step go to embeddings: the product's rule, and that of the ORTHRUS paper."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Protocol

from modelserver.engines.engine import EngineLoad
from modelserver.scheduler.embedding_batches import embed_room


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits before a step: `prompt_tokens` of generations that may run, and how many requests of either task."""

    prompt_tokens: int
    embeddings: int
    generations: int


class Policy(Protocol):
    """Divides what the sequences that decode leave of a step."""

    def embedding_tokens(self, left_tokens: int, waiting: Waiting) -> int:
        """Tokens for embeddings, of `left_tokens`; prompts get the rest, and what embeddings do not use."""
        ...


class Floor:
    """The model server's own rule: embeddings first, and prompts that wait keep a quarter."""

    def embedding_tokens(self, left_tokens: int, waiting: Waiting) -> int:
        return embed_room(left_tokens, EngineLoad(waiting_tokens=waiting.prompt_tokens))


class Proportional:
    """The paper's rule: x : y = w_e : w_g, the requests in a step as those that wait."""

    def embedding_tokens(self, left_tokens: int, waiting: Waiting) -> int:
        """Rounded up, so that embeddings never stop; and always what prompts leave."""
        requests = max(1, waiting.embeddings + waiting.generations)
        return max(ceil(left_tokens * waiting.embeddings / requests), left_tokens - waiting.prompt_tokens)
