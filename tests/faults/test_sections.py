"""Every row leads to a section of the runbook that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.sections import SECTIONS

pytestmark = pytest.mark.short

HERE = Path(__file__).parent
RUNBOOK = HERE.parents[1] / "docs/runbook.md"
ROW = re.compile(r'^@pytest\.mark\.row\(\s*"(?!checker: ).*?^async def (test_\w+)', re.MULTILINE | re.DOTALL)


def test_every_row_has_a_section() -> None:
    rows = [name for file in HERE.rglob("test_*.py") for name in ROW.findall(file.read_text(encoding="utf-8"))]
    assert len(rows) > 30
    assert sorted(rows) == sorted(SECTIONS)


def test_every_section_is_there() -> None:
    titles = re.findall(r"^#+ (.*)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(SECTIONS.values()) <= anchors
    assert set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOK.read_text(encoding="utf-8"))) <= anchors
