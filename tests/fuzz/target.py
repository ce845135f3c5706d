"""What a fuzz target is: a decoder, and what may come of any bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder.

    `check` takes any bytes and raises only what is a finding: named errors of ours are caught in it, and what was
    decoded is used as it will be.
    """

    name: str
    check: Callable[[bytes], object]
    max_bytes: int = 4096


class Cut:
    """Cuts fields off an input from its front; an input that is over gives zeros and nothing."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def field(self) -> bytes:
        """A length of one byte, and as many bytes."""
        size = self.byte()
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self) -> bytes:
        return self._data[self._at :]
