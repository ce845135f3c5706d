"""Read the log files of the parts: JSON lines of our own processes, whatever others write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CONSTANT = frozenset({"ts", "service", "logger"})
_LONGEST = 400


class LogFile:
    """A process's log since it was opened here; older lines of the file are not looked at."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0
        self._read = self._start

    def text(self) -> str:
        return self._from(self._start).decode(errors="replace")

    def new_lines(self) -> list[str]:
        """The whole lines written since the last call."""
        written = self._from(self._read)
        whole = written[: written.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()

    def tail(self, lines: int = 20) -> str:
        """Its last lines, for a person; a stack trace of Java would crowd out the message above it."""
        last = [line for line in self.text().splitlines() if line and not line.startswith("\tat ")][-lines:]
        if not last:
            return f"Its log, {self.path}, is empty."
        return "\n".join([f"The end of {self.path}:", *(f"  | {readable(line)}" for line in last)])

    def _from(self, position: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(position)
            return file.read()


def event(line: str) -> Mapping[str, Any] | None:
    """The fields of a JSON log line; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "event" in fields else None


def readable(line: str) -> str:
    """The line without what JSON adds to it; an exception last, from its end."""
    fields = event(line)
    if fields is None:
        return line[:_LONGEST]
    rest = {name: value for name, value in fields.items() if name not in _CONSTANT}
    exception = str(rest.pop("exception", "")).strip().splitlines()
    text = f"{rest.pop('level', '')}: {rest.pop('event')}"
    details = ", ".join(f"{name}={value}" for name, value in rest.items())
    text = f"{text} ({details})" if details else text
    return "\n  | ".join([text[:_LONGEST], *(f"  {each[:_LONGEST]}" for each in exception[-3:])])
