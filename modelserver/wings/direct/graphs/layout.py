"""The layout of a step in a graph's input buffer: its queries, empty ones, and dummies that fill the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from modelserver.engines.engine import IdArray
from modelserver.engines.model_config import capture_sizes

T = TypeVar("T")

_SMALLEST, _LARGEST = 64, 8192
"""Tokens. Below, a step of the smallest takes as long; above, a GPU computes longer than its kernels take to launch."""
_TOKENS_PER_SLOT = 4
"""Tokens of an average query, special ones included, at which a full graph has no slot left."""
_FEWEST_SLOTS = 8
_MOST_QUERIES = 992
"""Up to so many queries FlashAttention 3 prepares its schedule in one kernel (32 × 31, flash_prepare_scheduler.cu)."""
_LONGEST = 128
"""Tokens of the longest query of a graph: of most questions, and one tile of FlashAttention's rows."""
_ALIGNED = 64
"""Numbers at whose multiples each part begins: kernels read 256 bytes at once where they may."""


class Parts(NamedTuple, Generic[T]):
    """The parts of an input buffer, int32, as arrays on the host or as tensors on the device.

    [tokens]: `token_ids`, `positions`, `types`, `segments` (the query of each token). `bounds` [queries + 1].
    [queries]: `lengths`, `first` (the first token of each query).
    """

    token_ids: T
    positions: T
    types: T
    segments: T
    bounds: T
    lengths: T
    first: T


@dataclass(frozen=True, slots=True)
class Shape:
    """A graph computes exactly `tokens`, in up to `slots` queries of up to `longest` tokens, and in dummies."""

    tokens: int
    slots: int
    longest: int

    @property
    def dummies(self) -> int:
        """Queries that hold the tokens which a step leaves."""
        return math.ceil(self.tokens / self.longest)

    @property
    def queries(self) -> int:
        return self.slots + self.dummies

    def takes(self, tokens: int, queries: int, longest: int) -> bool:
        return tokens <= self.tokens and queries <= self.slots and longest <= self.longest

    @property
    def places(self) -> Parts[slice]:
        """The place of each part in a buffer of `size` numbers."""
        begin, found = 0, list[slice]()
        for length in (*(self.tokens,) * 4, self.queries + 1, self.queries, self.queries):
            found.append(slice(begin, begin + length))
            begin += math.ceil(length / _ALIGNED) * _ALIGNED
        return Parts(*found)

    @property
    def size(self) -> int:
        """Numbers of an input buffer."""
        end: int = self.places.first.stop
        return end

    def lay_out(
        self, buffer: IdArray, token_ids: IdArray, lengths: IdArray, second_segments: IdArray | None = None
    ) -> None:
        """Write a step that this shape takes into a buffer, int32 [size].

        Attention leaves rows that no query covers as they are, and what stands there, NaN perhaps, would spread. So
        dummies of up to `longest` tokens cover what the step's queries leave. Slots between the two are empty queries.
        """
        parts = Parts(*(buffer[place] for place in self.places))
        used = token_ids.size
        whole, rest = divmod(self.tokens - used, self.longest)
        parts.lengths[:] = 0
        parts.lengths[: lengths.size] = lengths
        parts.lengths[self.slots : self.slots + whole] = self.longest
        if rest:
            parts.lengths[self.slots + whole] = rest
        parts.bounds[0] = 0
        np.cumsum(parts.lengths, out=parts.bounds[1:])
        np.minimum(parts.bounds[:-1], self.tokens - 1, out=parts.first)  # an empty query reads a row that exists
        parts.segments[:] = np.repeat(np.arange(self.queries, dtype=np.int32), parts.lengths)
        np.subtract(np.arange(self.tokens, dtype=np.int32), parts.bounds[parts.segments], out=parts.positions)
        parts.token_ids[:used], parts.token_ids[used:] = token_ids, 0
        parts.types[:] = 0
        if second_segments is not None:
            parts.types[:used] = parts.positions[:used] >= np.repeat(second_segments, lengths)


def shapes(step_tokens: int, max_input_tokens: int) -> tuple[Shape, ...]:
    """The shapes of an engine whose step holds `step_tokens`, the smallest first."""
    found = list[Shape]()
    for tokens in capture_sizes(step_tokens, _SMALLEST, _LARGEST):
        longest = min(_LONGEST, max_input_tokens, tokens)
        slots = min(max(_FEWEST_SLOTS, tokens // _TOKENS_PER_SLOT), _MOST_QUERIES - math.ceil(tokens / longest))
        if slots > 0:
            found.append(Shape(tokens, slots, longest))
    return tuple(found)
