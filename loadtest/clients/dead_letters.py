"""Judge dead letters: which are requested, which of them can go back, and in what form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Protocol

from loadtest.clients.messages import Header

_PREFIX = "dlt-"
_REDRIVES = "dlt-redrives"
_MOST_DIGITS = 9


class DeadLetter(Protocol):
    """A record of a dead-letter topic; `timestamp` in milliseconds since 1970."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


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

    def includes(self, letter: DeadLetter) -> bool:
        """Whether this dead letter is requested."""
        return (
            self.since_s <= letter.timestamp / 1e3 < self.until_s
            and (self.key is None or letter.key == self.key)
            and (not self.codes or error_code(letter) in self.codes)
        )


@dataclass(frozen=True, slots=True)
class PutBack:
    """The record that a dead letter becomes: what was sent at first, and how often it was put back."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def put_back(letter: DeadLetter, wanted: Wanted, letters_topic: str) -> PutBack | Obstacle:
    """What to write for a dead letter, without the headers that it was given as one; never to the dead-letter topic."""
    found = dict(letter.headers)
    if "dlt-value-omitted" in found:
        return Obstacle.VALUE_OMITTED
    redrives = found.get(_REDRIVES, b"0") or b""  # a header may have no content
    count = int(redrives) if redrives.isdigit() and len(redrives) <= _MOST_DIGITS else wanted.max_redrives
    if count >= wanted.max_redrives:
        return Obstacle.TOO_OFTEN
    topic = wanted.topic or _text(found.get("dlt-original-topic"))
    if not topic or topic == letters_topic:
        return Obstacle.NO_TOPIC
    headers = [(name, content) for name, content in letter.headers if not name.startswith(_PREFIX)]
    return PutBack(topic, letter.key, letter.value, [*headers, (_REDRIVES, b"%d" % (count + 1))])


def error_code(letter: DeadLetter) -> str:
    """The code it failed with; empty where it names none."""
    return _text(dict(letter.headers).get("dlt-error-code"))


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")
