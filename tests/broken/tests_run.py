"""Run some tests in a copy of the tree, and say which of them failed."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

_LONGEST_S = 900.0


def failed_of(tests: Sequence[str], tree: Path) -> list[str]:
    """Those of `tests` (path::name, of all parameters together) of which a case failed.

    Raises ChildProcessError when a test was skipped, or not run to its end: then it says nothing.
    """
    report, log = tree.with_suffix(".xml"), tree.with_suffix(".log")
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
    # Without bytecode, which would be taken for that of a file of the same size and second.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with log.open("wb") as out:
        subprocess.run(
            command, cwd=tree, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False, timeout=_LONGEST_S
        )
    ended = _endings(report)
    if unclear := [test for test in tests if ended.get(test) not in {"passed", "failure"}]:
        raise ChildProcessError(f"not run to their end: {', '.join(unclear)}; see {log}")
    return [test for test in tests if ended[test] == "failure"]


def _endings(report: Path) -> dict[str, str]:
    """How each test of a pytest report ended; one with several cases failed if one of them did."""
    found: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase") if report.exists() else ():  # noqa: S314 - our own wrote it
        path = case.get("classname", "").replace(".", "/") + ".py"
        test = f"{path}::{case.get('name', '')}"
        kinds = {child.tag for child in case}
        ending = next((kind for kind in ("failure", "error", "skipped") if kind in kinds), "passed")
        for name in (test, test.partition("[")[0]):
            if found.get(name) != "failure":
                found[name] = ending
    return found
