"""A tokenizer, as admission needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aggregator.tokenizers.pairs import PairFrame
from protos.generation.v1.generation_pb2 import Message


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids of several texts, end to end, special tokens included, nothing truncated.

    `ids` int32 little endian [Σ lengths], `lengths` int32 [texts].
    """

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]


class Detokenizer(Protocol):
    """Turns the tokens of one text into characters."""

    def step(self, token_id: int) -> str: ...


class Tokenizer(Protocol):
    """The model's own fast tokenizer; thread-safe, called off the event loop."""

    def count(self, texts: Sequence[str]) -> TokenBatch: ...

    def truncate_ids(self, token_ids: bytes, max_tokens: int, *, keep_end: bool) -> bytes:
        """The token ids of a text truncated to `max_tokens`, special tokens kept; int32 little endian."""
        ...

    @property
    def special_ids(self) -> tuple[bytes, bytes]:
        """The special tokens before and after a text; int32 little endian."""
        ...

    def without_special(self, token_ids: bytes) -> bytes:
        """The token ids of a text without the special tokens around it; int32 little endian."""
        ...

    def pair_frame(self, *, token_types: bool) -> PairFrame:
        """How two texts are joined; `token_types`: the model tells the second one by them.

        Raises ValueError for a tokenizer that joins them otherwise than by special tokens around and between them.
        """
        ...


class GenerationTokenizer(Tokenizer, Protocol):
    """The tokenizer of a model that generates."""

    def prompt(self, messages: Sequence[Message]) -> str:
        """A chat as the model's own template formats it. Raises InvalidRequest."""
        ...

    def piece(self, token_id: int) -> tuple[str, bytes]:
        """A token's name, and what it adds to a text: bytes, as it may be a part of a character."""
        ...

    def detokenizer(self, prompt_ids: bytes) -> Detokenizer:
        """The detokenizer of the text after these ids, int32 little endian."""
        ...
