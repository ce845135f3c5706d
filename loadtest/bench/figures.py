"""What a benchmark found, and where findings are kept: one line of `loadtest/results.csv` each."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

RESULTS = Path(__file__).parents[2] / "results.csv"
_COLUMNS = ("date", "commit", "hardware", "bench", "figure", "value", "unit", "repeats", "notes", "least", "most")


@dataclass(frozen=True, slots=True)
class Figure:
    """One finding; `wanted` is the bound it should keep, such as "≤ 1.5", for the table.

    `spread`: the least and the most of the turns whose median `value` is; None for what has no turns.
    """

    bench: str
    figure: str
    value: float
    unit: str
    repeats: int
    notes: str = ""
    wanted: str = ""
    spread: tuple[float, float] | None = None

    @property
    def kept(self) -> bool:
        """Whether the value keeps its bound; True without one."""
        if not self.wanted:
            return True
        sign, bound = self.wanted.split()
        return self.value <= float(bound) if sign == "≤" else self.value >= float(bound)


def append(figures: Sequence[Figure], file: Path) -> None:
    """Add the figures to a results file, which is made if it is not there."""
    is_new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        if is_new:
            writer.writerow(_COLUMNS)
        when, what, where = datetime.now(UTC).date().isoformat(), commit(), hardware()
        for each in figures:
            value, *spread = (f"{number:.4g}" for number in (each.value, *(each.spread or ())))
            found = (each.bench, each.figure, value, each.unit, each.repeats, each.notes, *(spread or ("", "")))
            writer.writerow([when, what, where, *found])


def table(figures: Sequence[Figure]) -> Group:
    """The figures for a reader, each beside the bound it should keep; above those that share them their notes."""
    blocks: list[Text | Table] = []
    for (bench, notes), group in groupby(figures, lambda each: (each.bench, each.notes)):
        shown = Table("figure", Column("value", justify="right"), "turns", "unit", "wanted")
        for each in group:
            style = None if not each.wanted else "green" if each.kept else "bold red"
            turns = "{:.4g} to {:.4g}".format(*each.spread) if each.spread else ""
            shown.add_row(each.figure, f"{each.value:.4g}", turns, each.unit, each.wanted, style=style)
        blocks += [Text(f"{bench}: {notes}", style="bold"), shown]
    return Group(*blocks)


def commit() -> str:
    """The commit of the code that runs, with + for changes on top of it; unknown outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "*.py")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def hardware() -> str:
    """How many cores of which processor."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = names[0].partition(":")[2].strip() if names else "unknown processor"
    return f"{len(os.sched_getaffinity(0))} cores of {processor}"
