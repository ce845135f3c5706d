"""The CPU time of a turn of the event loop: its bound, and how tests measure it beside other work."""

from __future__ import annotations

from collections.abc import Callable

TURN_S = 0.005
"""The longest that anything which a caller sends may hold the event loop, or the interpreter's lock."""


def least_s(measure: Callable[[], float], tries: int = 10, *, enough_s: float = 0.0) -> float:
    """The least of some measurements, since other work on the machine can only add to one.

    The first that is below `enough_s` is the last.
    """
    found: list[float] = []
    for _ in range(tries):
        found.append(measure())
        if found[-1] < enough_s:
            break
    return min(found)
