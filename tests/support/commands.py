"""Commands of the product, run to their end."""

from __future__ import annotations

import os
import subprocess
import sys


def ended(*command: str, **environment: str) -> tuple[int, str]:
    """The exit code of `python -m COMMAND`, and what it wrote to stderr."""
    found = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return found.returncode, found.stderr
