"""Select the requested dead letters, make the records to write of them, and remember the ones put back."""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from aggregator.sources.kafka.decode import REDRIVES
from aggregator.sources.kafka.offsets import Header, Record

_PREFIX = "dlt-"
_MOST_DIGITS = 9  # int() takes time that grows with the square of the digits
_VERSION = "1:"
_MOST_CHARACTERS = 4000
"""A broker takes 4096 bytes by default (offset.metadata.max.bytes)."""


class Obstacle(StrEnum):
    """Why a dead letter that is requested cannot go back."""

    VALUE_OMITTED = "value omitted"
    TOO_OFTEN = "put back too often"
    NO_TOPIC = "no original topic"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The dead letters that are requested; empty and None: any. Their times are Unix seconds, `until` excluded.

    A dead letter is put back at most `max_redrives` times; to `topic`, or where it came from if that is empty.
    """

    codes: frozenset[str] = frozenset()
    since_s: float = -inf
    until_s: float = inf
    key: bytes | None = None
    topic: str = ""
    max_redrives: int = 3

    @property
    def is_selective(self) -> bool:
        """Whether it leaves dead letters out by what they are."""
        return bool(self.codes) or self.key is not None or self.since_s > -inf or self.until_s < inf

    def includes(self, letter: Record) -> bool:
        """Whether this dead letter is requested."""
        return (
            self.since_s <= letter.timestamp / 1e3 < self.until_s
            and (self.key is None or letter.key == self.key)
            and (not self.codes or error_code(letter) in self.codes)
        )


@dataclass(frozen=True, slots=True)
class PutBack:
    """The record that a dead letter becomes: the original one, and how often it was put back."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def put_back(letter: Record, wanted: Wanted, letters_topic: str) -> PutBack | Obstacle:
    """The record to write for a dead letter, without its dead-letter headers; never to the dead-letter topic."""
    found = dict(letter.headers)
    if "dlt-value-omitted" in found:
        return Obstacle.VALUE_OMITTED
    redrives = found.get(REDRIVES, b"0") or b""  # a header may have no content
    count = int(redrives) if redrives.isdigit() and len(redrives) <= _MOST_DIGITS else wanted.max_redrives
    if count >= wanted.max_redrives:
        return Obstacle.TOO_OFTEN
    topic = wanted.topic or _text(found.get("dlt-original-topic"))
    if not topic or topic == letters_topic:
        return Obstacle.NO_TOPIC
    headers = [(name, content) for name, content in letter.headers if not name.startswith(_PREFIX)]
    return PutBack(topic, letter.key, letter.value, [*headers, (REDRIVES, b"%d" % (count + 1))])


def error_code(letter: Record) -> str:
    """The code it failed with; empty where it names none."""
    return _text(dict(letter.headers).get("dlt-error-code"))


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")


class Offsets:
    """The first offset of a partition that was not put back, and which ones behind it were.

    They are kept in the little text that Kafka stores beside a committed offset.
    """

    def __init__(self, offset: int, metadata: str = "") -> None:
        """From a committed offset and its metadata; metadata of another kind counts as none."""
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
        """The metadata to commit beside the position; empty when nothing behind it was put back.

        A mark that is too long loses its far end: those dead letters would be put back again.
        """
        last = max(self._done, default=self.position)
        while True:
            text = self._text(last)
            if len(text) <= _MOST_CHARACTERS:
                return text
            last = self.position + (last - self.position) * 3 // 4

    def _text(self, last: int) -> str:
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
