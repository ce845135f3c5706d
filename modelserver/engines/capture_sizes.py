"""The sizes of steps that CUDA graphs are captured for."""

from __future__ import annotations

_SMALLEST, _LARGEST = 8, 4096
"""Tokens. Above the largest, a GPU computes longer than its kernels take to launch (estimated: `make bench-gpu`)."""


def capture_sizes(step_tokens: int) -> tuple[int, ...]:
    """Powers of two and their midpoints, which are also the totals of the profile, up to what a step holds.

    A smaller step is padded to the next of them. vLLM's default, 51 sizes up to 512, leaves larger steps without.
    """
    most = min(step_tokens, _LARGEST)
    sizes = {size for power in range(most.bit_length()) for size in (2**power, 3 * 2**power // 2)}
    return tuple(sorted({size for size in sizes if _SMALLEST <= size < most} | {most}))
