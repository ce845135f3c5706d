"""Remember which dead letters of a partition were put back, in the little text that Kafka keeps beside an offset."""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode

_VERSION = "1:"
_MOST_CHARACTERS = 4000
"""Of 4096 that a broker takes by default (offset.metadata.max.bytes)."""


class Offsets:
    """The first offset that was not put back, and which ones behind it were."""

    def __init__(self, offset: int, metadata: str = "") -> None:
        """From what was committed; metadata of another kind is taken for none."""
        self.position = offset
        self._done = set(_offsets(offset, metadata))

    def __contains__(self, offset: int) -> bool:
        return offset < self.position or offset in self._done

    def put_back(self, offset: int) -> None:
        """This one needs no other run."""
        if offset >= self.position:
            self._done.add(offset)
        self._advance()

    def pass_over(self, start: int, end: int) -> None:
        """Offsets from `start` up to `end` hold no letter."""
        if start <= self.position < end:
            self.position = end
        else:
            self._done.update(range(max(start, self.position), end))
        self._advance()

    def metadata(self) -> str:
        """What to commit beside the position; empty when nothing behind it was put back.

        What does not fit is left out from the far end: those dead letters would be put back again.
        """
        last = max(self._done, default=self.position)
        while True:
            told = self._told(last)
            if len(told) <= _MOST_CHARACTERS:
                return told
            last = self.position + (last - self.position) * 3 // 4

    def _told(self, last: int) -> str:
        """The offsets up to `last`, as compressed bits."""
        bits = bytearray((last - self.position) // 8 + 1)
        for offset in self._done:
            if offset <= last:
                bits[(offset - self.position) // 8] |= 1 << (offset - self.position) % 8
        return _VERSION + b64encode(zlib.compress(bits, 9)).decode() if any(bits) else ""

    def _advance(self) -> None:
        while self.position in self._done:
            self._done.discard(self.position)
            self.position += 1


def _offsets(start: int, metadata: str) -> list[int]:
    if not metadata.startswith(_VERSION):
        return []
    try:
        bits = zlib.decompress(b64decode(metadata.removeprefix(_VERSION), validate=True))
    except (binascii.Error, zlib.error):
        return []
    return [start + 8 * index + bit for index, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]
