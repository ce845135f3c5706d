"""Let a budget be one of the sizes that a model server has CUDA graphs for, where that gives more tokens per second."""

from __future__ import annotations

from protos.modelserver.v1.curve import Curve


def snapped(curve: Curve, tokens: int, most: int) -> int:
    """The budget near `tokens` with the highest throughput, at most `most`; `tokens` if there are no capture sizes.

    A step is padded to the next capture size and takes as long as one of that size, so a budget between two sizes pays
    for tokens that it does not hold. The upper size costs nothing more. If `most` rules it out, the lower size is
    better where a step's time follows its tokens, and `tokens` where it hardly does.
    """
    tokens = min(tokens, most)
    upper = curve.padded(tokens)
    if upper <= most:
        return upper
    lower = curve.captured_within(tokens)
    return lower if curve.throughput(lower) >= curve.throughput(tokens) else tokens
