"""What a newcomer is told to install is what .ci/install needs, and what .ci/run tests with."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_readme_names_every_system_package_in_one_line_to_paste() -> None:
    (packages,) = re.findall(r'^readonly PACKAGES="(.*)"', (ROOT / ".ci" / "install").read_text(), re.MULTILINE)
    assert f"    apt-get update && apt-get install -y {packages}\n" in (ROOT / "README.md").read_text()
    (tested,) = re.findall(r"for package in (.*); do", (ROOT / ".ci" / "run").read_text())
    assert set(tested.split()) >= set(packages.split())
