"""Which of the files that docs/architecture.md lists are entered."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]


_STEP = re.compile(r"^\d+\. \[`([^`]+)`\]\(\.\./\1\)(?: .*→ `(\w+)`)?", re.MULTILINE)


def listed(title: str) -> list[str]:
    """The files under a heading, in their order."""
    return [file for file, _ in _steps(title)]


def types(title: str) -> dict[str, str]:
    """What a record or call is from a step on, and the file of that step."""
    return {kind: file for file, kind in _steps(title) if kind}


def _steps(title: str) -> list[tuple[str, str]]:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return _STEP.findall(re.sub(r"\n +", " ", section))


@contextmanager
def entered(files: Sequence[str]) -> Generator[set[str]]:
    """Those of `files` whose code ran meanwhile."""
    found: set[str] = set()
    by_path = {str(ROOT / file): file for file in files}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            file = by_path.get(frame.f_code.co_filename)
            if file is not None:
                found.add(file)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


WAYS = ("a record", "a call by gRPC", "a call over HTTP", "a generation by gRPC")


def _executed() -> str:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return page.partition("## What each way executes\n")[2].partition("\n## ")[0]


def timer_files() -> set[str]:
    """The files that the page names as run by timers, whichever requests come."""
    sentence = _executed().partition("On timers")[2].partition("\n\n")[0]
    return {f"aggregator/{file}" for file in re.findall(r"`([\w/]+\.py)`", sentence)}


def executed_files() -> dict[str, set[str]]:
    """The files that the page's table gives for each way."""
    found: dict[str, set[str]] = {way: set() for way in WAYS}
    for room, *cells in re.findall(r"^\| `([^`]+)` \|" + r" ([^|]*) \|" * (1 + len(WAYS)), _executed(), re.MULTILINE):
        every, *own = ({f"{room}{stem}.py" for stem in re.findall(r"\w+", cell)} for cell in cells)
        for way, files in zip(WAYS, own, strict=True):
            found[way] |= files | every
    return found


def files_table(found: dict[str, set[str]]) -> str:
    """The table as the page should have it."""
    rooms = sorted({file.rpartition("/")[0] + "/" for files in found.values() for file in files})
    rows = [f"| room | every way | {' | '.join(WAYS)} |", "|---" * (2 + len(WAYS)) + "|"]
    for room in rooms:
        ways = [{Path(file).stem for file in found[way] if file.rpartition("/")[0] + "/" == room} for way in WAYS]
        every = set.intersection(*ways)
        cells = [" ".join(sorted(stems)) for stems in (every, *(stems - every for stems in ways))]
        rows.append(f"| `{room}` | {' | '.join(cells)} |")
    return "\n".join(rows)
