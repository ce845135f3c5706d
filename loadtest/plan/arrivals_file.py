"""Read when queries came and how long they were: a CSV with a header, or an access log."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

CHARACTERS_PER_TOKEN = 4.0
"""Of English text, about: for files that tell lengths in characters, or hold the texts."""
_LOG_LINE = re.compile(r"\[(\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]")
_TIME = ("time", "timestamp", "ts", "date", "datetime", "arrived_at")
_TOKENS = ("tokens", "token_count", "contexttokens", "input_tokens", "prompt_tokens")
_CHARACTERS = ("characters", "length", "text_length", "chars")
_TEXT = ("text", "query", "input", "prompt")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Queries as they came: seconds after the first, sorted, and their tokens; `guessed`: the file tells no lengths."""

    times_s: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]
    guessed: bool

    @property
    def duration_s(self) -> float:
        """From the first to the last."""
        return float(self.times_s[-1])


def read(file: Path, *, tokens: int) -> Recorded:
    """The queries of a file; `tokens` each where it tells nothing of their length.

    Raises OSError, and ValueError for a file of which no two queries can be read, naming what it should hold.
    """
    with file.open(encoding="utf-8", errors="replace", newline="") as opened:
        first = opened.readline()
        opened.seek(0)
        rows = list(_logged(opened) if _LOG_LINE.search(first) else _tabled(opened, file))
    if len(rows) < 2:  # noqa: PLR2004 - one query has no rate
        raise ValueError(f"{file} holds fewer than two queries: give a CSV with a column time, or an access log")
    times = np.array([when for when, _ in rows])
    counts = np.array([count if count is not None else tokens for _, count in rows], dtype=np.int64)
    order = np.argsort(times, kind="stable")
    return Recorded(times[order] - times.min(), np.maximum(counts[order], 1), all(count is None for _, count in rows))


def _logged(lines: Iterator[str]) -> Iterator[tuple[float, int | None]]:
    """Lines of Apache's and nginx' common log format; others are passed over."""
    for line in lines:
        if found := _LOG_LINE.search(line):
            yield datetime.strptime(found[1], "%d/%b/%Y:%H:%M:%S %z").timestamp(), None


def _tabled(lines: Iterator[str], file: Path) -> Iterator[tuple[float, int | None]]:
    rows = csv.DictReader(lines)
    names = {name.strip().lower(): name for name in rows.fieldnames or ()}
    when = next((names[name] for name in _TIME if name in names), None)
    if when is None:
        raise ValueError(f"{file} has no column of times: name it time, beside tokens, characters or text")
    count = _counter(names)
    for number, row in enumerate(rows, 2):
        try:
            yield _seconds(row[when]), count(row)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file}, line {number}: {error}") from error


def _counter(names: dict[str, str]) -> Callable[[dict[str, str]], int | None]:
    """The reader of a row's tokens, by the columns there are."""

    def column(known: tuple[str, ...]) -> str:
        return next((names[name] for name in known if name in names), "")

    tokens, characters, text = column(_TOKENS), column(_CHARACTERS), column(_TEXT)

    def count(row: dict[str, str]) -> int | None:
        if tokens:
            return round(float(row[tokens]))
        if characters or text:
            return round((float(row[characters]) if characters else len(row[text])) / CHARACTERS_PER_TOKEN)
        return None

    return count


def _seconds(text: str) -> float:
    """Seconds since 1970, or an ISO 8601 time, UTC where it names no zone; more than microseconds are cut off."""
    try:
        return float(text)
    except ValueError:
        pass
    when = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.strip()))
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
