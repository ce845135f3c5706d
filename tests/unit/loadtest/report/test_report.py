"""The page: whole, alone, and the same for one seed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.lab.report.load import Effort, pods_needed
from loadtest.simulate.scenario import Kind


def test_ours_needs_a_fraction_of_the_pods_that_sequential_needs() -> None:
    effort = Effort(quick=True)
    assert pods_needed(Kind.OURS, 400.0, 0.1, effort) == 1
    assert pods_needed(Kind.SEQUENTIAL, 400.0, 0.1, effort) == 9  # of 50 a second each


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_writes_the_whole_report(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert main(["report", "--quick", "--out", str(file)]) == 0
    html = file.read_text(encoding="utf-8")
    assert not [link for link in re.findall(r'(?:src|href)="([^"]*)"', html) if not link.startswith("#")]
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    names = ("knee", "attainment", "fill", "gpus", "controller", "hour", "day", "cases", "mixed")
    assert all(f'<section id="{name}">' in html for name in names)
    assert html.count("<svg ") == 17
    assert main(["report", "--quick", "--out", str(tmp_path)]) == 2
