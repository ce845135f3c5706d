"""Run a program of ours to its end: what loads torch, say, and gives its memory back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from loadtest.stack.errors import StackError

_TIMEOUT_S = 600.0


def output_of(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = _TIMEOUT_S
) -> str:
    """What `python -m MODULE ARGUMENTS` writes to standard output. Raises StackError if it fails or takes too long."""
    command = [sys.executable, "-m", module, *arguments]
    variables = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise StackError(f"{module} took more than {timeout_s:g} s") from None
    if done.returncode:
        raise StackError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
