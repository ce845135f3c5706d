"""Package the chart: `python -m tests.chart.package FOLDER`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.chart.rendering import CHART, helm


def packaged(folder: Path, version: int = 4) -> Path:
    """The chart's archive, made in a folder; `version`: of the tests' helm, where none is on PATH."""
    program = shutil.which("helm") or str(helm(version))
    done = subprocess.run(
        [program, "package", str(CHART), "--destination", str(folder)], check=True, capture_output=True, text=True
    )
    return Path(done.stdout.strip().rpartition(": ")[2])


if __name__ == "__main__":
    print(packaged(Path(sys.argv[1])))  # noqa: T201 - its result
