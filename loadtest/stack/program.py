"""Run a program of ours: as a part of a stack, or to its end, as what loads torch and gives its memory back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from loadtest.stack.child import Child
from loadtest.stack.errors import StackError
from loadtest.stack.part import Part

_TIMEOUT_S = 600.0


class Program(Part):
    """`python -m MODULE ARGUMENTS`; ready when `port` is open, at once without one."""

    def __init__(self, module: str, arguments: Sequence[str], log_file: Path, port: int | None = None) -> None:
        super().__init__(module, f"Its log is {log_file}.")
        self._command = [sys.executable, "-m", module, *arguments]
        self._log_file = log_file
        self._port = port

    @override
    def _spawn(self) -> Child:
        return Child(self.name, self._command, self._log_file)

    @override
    def _answers(self) -> bool:
        if self._port is None:
            return True
        try:
            socket.create_connection(("localhost", self._port), timeout=1).close()
        except OSError:
            return False
        return True


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
