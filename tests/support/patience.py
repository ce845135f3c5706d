"""How long a test waits for what may hang: a time-out is no promise, and load must not end a test."""

FACTOR = 8
"""On two cores with eight busy loops beside it, a program that computes takes five times as long."""


def patient(seconds: float) -> float:
    """The time-out for what takes fewer than `seconds` on an idle machine."""
    return FACTOR * seconds
