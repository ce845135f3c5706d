"""The inputs of an eager step on their way to a GPU: all of them by one copy, from pinned memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

_ALIGNED = 64
"""Numbers at whose multiples each part begins: kernels read 256 bytes at once where they may."""

Parts = Sequence[torch.Tensor | None]


def by_one_copy(
    parts: Parts, host: Callable[[int], torch.Tensor], copy: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor | None]:
    """`parts`, each int32 or int64 [n] on the host, as `copy` places them on a device; None stays None.

    `host`: a buffer of so many numbers, int32, whose memory `copy` may still read when it has returned.
    """
    words = [torch.empty(0, dtype=torch.int32) if part is None else part.view(torch.int32) for part in parts]
    begins = [0, *accumulate(-(-word.numel() // _ALIGNED) * _ALIGNED for word in words)]
    buffer = host(begins[-1])
    for begin, word in zip(begins, words, strict=False):
        buffer[begin : begin + word.numel()] = word
    there = copy(buffer)
    return [
        None if part is None else there[begin : begin + word.numel()].view(part.dtype)
        for begin, word, part in zip(begins, words, parts, strict=False)
    ]


def to_cuda(parts: Parts, device: torch.device) -> list[torch.Tensor | None]:
    """The same on a GPU. torch keeps the pinned buffer until the copy, on the current stream, has read it."""
    return by_one_copy(
        parts,
        lambda size: torch.empty(size, dtype=torch.int32, pin_memory=True),
        lambda buffer: buffer.to(device, non_blocking=True),
    )
