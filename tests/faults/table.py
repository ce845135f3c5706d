"""Write the rows that were run into docs/reliability.md; a row that was not run keeps its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.faults.rows import FOLDER, Row, read_file
from tests.faults.sections import SECTIONS

DOCUMENT = Path("docs/reliability.md")
_LINKED = re.compile(r"^\[(.*)\]\(runbook\.md#.*\)$")
_BEGIN, _END = "<!-- rows: written by `make faults` -->\n", "<!-- end of rows -->"
_HEADER = (
    "| fault | ended | sent | answered | dead-lettered | lost | wrong | duplicates | went back"
    " | recovery s | p99 s during, after | peak MiB | commit, time |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n"
)


def write_document() -> None:
    text = DOCUMENT.read_text()
    head, rest = text.split(_BEGIN)
    old, tail = rest.split(_END)
    lines = _lines_of(old)
    for file in sorted(FOLDER.glob("*.json")):
        row = read_file(file)
        if row is not None and row.outcome != "skipped":
            lines[_title(row)] = _line(row)
    DOCUMENT.write_text(
        head + _BEGIN + _HEADER + "".join(f"{line}\n" for _, line in sorted(lines.items())) + _END + tail
    )


def _lines_of(table: str) -> dict[str, str]:
    rows = table.splitlines()[2:]
    return {_LINKED.sub(r"\1", line.split("|")[1].strip()): line for line in rows}


def _title(row: Row) -> str:
    parameters = re.search(r"\[(.*)\]$", row.name)
    return row.fault + (f" ({parameters[1]})" if parameters else "")


def _linked(row: Row) -> str:
    """The title, which leads to what to do about it."""
    section = SECTIONS.get(row.name.partition("[")[0])
    return f"[{_title(row)}](runbook.md#{section})" if section else _title(row)


def _line(row: Row) -> str:
    found = row.figures
    checks = row.fault.startswith("checker: ")
    ended = {"passed": "caught" if checks else "held"}.get(row.outcome, "**failed**")
    cells = [_linked(row), ended, *(_figure(found, name) for name in _COUNTS)]
    cells.append(_figure(found, "recovery_s"))
    cells.append(f"{_figure(found, 'p99_during_s')}, {_figure(found, 'p99_after_s')}")
    cells.append(_figure(found, "peak_mib"))
    cells.append(f"{row.commit}, {row.at.partition('+')[0]}")
    return f"| {' | '.join(cells)} |"


_COUNTS = ("sent", "answered", "dead_lettered", "lost", "wrong", "duplicates", "regression")


def _figure(figures: Mapping[str, float], name: str) -> str:
    value = figures.get(name)
    if value is None:
        return ""
    if name in _COUNTS:
        return f"{value:,}"
    return f"{value:.0f}" if name == "peak_mib" else f"{value:.1f}"
