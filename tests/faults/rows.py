"""A row's result in a file: what was broken, how it ended, the figures, the commit and the time."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.faults.verdict import Verdict

FOLDER = Path(".run/faults")


@dataclass
class Figures:
    """What a row reports: the checker's verdict, or `counts` by the same names, and `more` that only this row has."""

    verdict: Verdict | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    more: dict[str, Any] = field(default_factory=dict[str, Any])

    def take(self, verdict: Verdict, **more: Any) -> Verdict:
        """Keep a verdict and further figures; returns the verdict."""
        self.verdict = verdict
        self.more |= more
        return verdict


def current_commit() -> str:
    """The short name of the commit that is checked out; "unknown" without git."""
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it was last run."""

    name: str
    file: str
    fault: str
    outcome: str
    why: str
    seconds: float
    figures: Mapping[str, Any]
    more: Mapping[str, Any]
    problems: tuple[str, ...]
    commit: str = field(default_factory=current_commit)
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def write_row(row: Row) -> None:
    """Keep a row's result, in place of an earlier one."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path_of(row.name).write_text(json.dumps(asdict(row), indent=2) + "\n")


def read_row(name: str) -> Row | None:
    return read_file(path_of(name))


def read_file(file: Path) -> Row | None:
    """The result in a file; None where there is none."""
    try:
        fields: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    problems = tuple(fields.pop("problems"))
    return Row(**fields, problems=problems)


def path_of(name: str) -> Path:
    return FOLDER / f"{re.sub(r'[^A-Za-z0-9_.-]+', '~', name).rstrip('~')}.json"
