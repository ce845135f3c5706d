"""Read the lines to send: a file's, or the bundled questions."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path


def bundled_questions() -> list[str]:
    """3,610 real search questions (NQ-open's development set)."""
    data = resources.files("loadtest").joinpath("data", "nq_open_dev_queries.txt")
    return _lines(data.read_text(encoding="utf-8"))


def read_lines(file: Path | None) -> list[str]:
    """The lines of `file`, as they are, empty ones too; the bundled questions when it is None.

    Only line feeds end a line: a form feed or U+2028 is part of its text. Raises OSError, and ValueError for a file
    that is not UTF-8.
    """
    if file is None:
        return bundled_questions()
    try:
        with file.open(encoding="utf-8", newline="") as text:
            return _lines(text.read())
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{file}, line {line}: not UTF-8 ({error.reason})") from error


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def different(questions: Sequence[str], size: int) -> list[str]:
    """So many different texts: the questions in their order, and numbered once more where there are too few of them."""
    laps = -(-size // len(questions))
    return [f"{question} {lap}" if lap else question for lap in range(laps) for question in questions][:size]
