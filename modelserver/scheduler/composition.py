"""Divide a step between decoding sequences, embeddings and prompts: the policy *floor*.

Every decoding sequence gets its token. Of what that leaves, embeddings take what they need, except that prompts that
wait keep a quarter: without it a flood of embeddings would starve them. What one side does not need the other one gets.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelserver.engines.engine import EngineLoad

_PROMPTS_SHARE = 4
"""Prompts that wait keep one part in four of what decoding leaves."""


def embed_room(step_tokens: int, load: EngineLoad) -> int:
    """Tokens of embeddings in a step of `step_tokens`, those in the engine included."""
    left = max(0, step_tokens - load.decoding)
    return left - min(load.prefill_tokens, left // _PROMPTS_SHARE)


class StepComposition:
    """The next step of at most `step_tokens`, while embeddings enter it; `seats`: how many may.

    An embedding that does not fit waits for a step that holds it whole. Only if the engine holds no other one, it is
    cut into parts.
    """

    def __init__(self, step_tokens: int, load: EngineLoad, seats: int) -> None:
        self._load = load
        self._left = max(0, step_tokens - load.decoding)
        self._room = embed_room(step_tokens, load)
        self._most = self._room
        self._held = sum(load.embeddings)
        self._entered: list[int] = []
        self._seats = seats
        self._first = not load.embeddings

    def admits(self, tokens: int, most_tokens: int) -> bool:
        """Whether an embedding may enter, whose sender allows `most_tokens` of embeddings in its step."""
        free = min(self._most, most_tokens) - self._held - sum(self._entered)
        return self._seats > 0 and free > 0 and (tokens <= free or self._first)

    def enter(self, tokens: int, most_tokens: int) -> None:
        """An embedding that is admitted enters."""
        self._most = min(self._most, most_tokens)
        self._entered.append(tokens)
        self._seats -= 1
        self._first = False

    @property
    def prompt_part(self) -> int:
        """The most tokens of one prompt or embedding in the step; 0: all of them.

        vLLM computes sequences in the order of their start, and those that wait last. The parts are so small that
        every decoding sequence and the part of the prompts that wait find room behind them.
        """
        load = self._load
        kept = max(0, self._left - self._room - sum(load.begun))
        part = _part((*load.begun, *load.embeddings, *self._entered), self._left - kept)
        if self._entered and self._entered[0] > self._most:  # of its sender's budget
            return min(part or self._most, self._most)
        return part


def _part(tokens_left: Sequence[int], room: int) -> int:
    """The largest part of each that all together fit the room; 0: they fit whole. At least 1, so that none stops."""
    if sum(tokens_left) <= room:
        return 0
    rest = sorted(tokens_left)
    for place, tokens in enumerate(rest):
        share = room // (len(rest) - place)
        if tokens > share:
            return max(1, share)
        room -= tokens
    return 0
