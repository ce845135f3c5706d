"""Measure how fast what is held leaves while callers are refused, so that they are told when there will be room."""

from __future__ import annotations

from math import inf

_FIRST_WINDOW_S, _WINDOW_S = 0.2, 1.0
_FORGET_S = 5.0


class Drain:
    """Tokens that leave per second, from what had left at one look and at another.

    It is looked at whenever a caller is refused: then something waits all the time, and what leaves is what can.
    """

    def __init__(self) -> None:
        self._tokens_per_s: float | None = None
        self._began_s = self._looked_s = -inf
        self._left = 0

    def tokens_per_s(self, left: int, now_s: float) -> float | None:
        """The rate, when `left` tokens have left in all; None until it is known."""
        if now_s - self._looked_s > _FORGET_S:
            self._tokens_per_s = None
            self._began_s, self._left = now_s, left
        self._looked_s = now_s
        window_s = _FIRST_WINDOW_S if self._tokens_per_s is None else _WINDOW_S
        if now_s - self._began_s >= window_s and left > self._left:
            self._tokens_per_s = (left - self._left) / (now_s - self._began_s)
            self._began_s, self._left = now_s, left
        return self._tokens_per_s
