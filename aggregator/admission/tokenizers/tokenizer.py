"""What the pipeline asks of the world, in the order of the data: records, token counts, engines, replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from protos.generation.v1.generation_pb2 import Message


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids of several texts, end to end, special tokens included, nothing truncated.

    `ids` int32 little endian [Σ lengths], `lengths` int32 [texts].
    """

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]


class Detokenizer(Protocol):
    """Turns one text's tokens into characters as they come."""

    def step(self, token_id: int) -> str:
        """The characters that are complete now, and were not before; special tokens have none."""
        ...


class Tokenizer(Protocol):
    """The model's own fast tokenizer; thread-safe, called off the event loop."""

    def count(self, texts: Sequence[str]) -> TokenBatch:
        """Tokenize several texts at once."""
        ...

    def part(self, text: str, characters: int, *, keep_end: bool) -> str | None:
        """A text's start, or its end, of at most so many characters, whose tokens are the whole text's first, or last.

        A text that is no longer is its own part. None: it has no place where it may be cut.
        """
        ...

    def join_ids(self, before: bytes, after: bytes) -> bytes:
        """Token ids of a text of those of its two parts, special tokens around the whole; int32 little endian."""
        ...

    def truncate_ids(self, token_ids: bytes, max_tokens: int, *, keep_end: bool) -> bytes:
        """Token ids of one over-long text cut to `max_tokens`, special tokens kept; int32 little endian."""
        ...


class TextTokenizer(Tokenizer, Protocol):
    """The same of a model that generates."""

    def without_special(self, token_ids: bytes) -> bytes:
        """Token ids of a text without the special ones that were put around it; int32 little endian."""
        ...

    def prompt(self, messages: Sequence[Message]) -> str:
        """A chat as the model's own template writes it. Raises InvalidRequest."""
        ...

    def detokenizer(self, prompt_ids: bytes) -> Detokenizer:
        """For the text that comes after these ids, int32 little endian."""
        ...
