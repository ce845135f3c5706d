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
    return _STEP.findall(section)


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
