"""Programs that time an engine by itself: asked on stdin for a number of steps, they write the seconds to stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.stack.errors import StackError


class Forward:
    """One such program, such as `engine_forward`; its first line says what computes."""

    def __init__(self, process: subprocess.Popen[str], log_file: Path) -> None:
        """Wait for that line. Raises StackError when the program ended instead."""
        self.pid = process.pid
        self._process = process
        self._log_file = log_file
        said: dict[str, str] = self._line()
        self.engine = f"{said['engine']} engine, {said['dtype']}"

    def seconds(self, steps: int) -> float:
        """Seconds that it takes for `steps` batches."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise StackError(f"what times the engine has ended; its log is {self._log_file}")
        return json.loads(line)


@contextmanager
def asked(command: Sequence[str], log_file: Path) -> Generator[Forward]:
    """Run `python -m` with this command. Raises StackError."""
    with (
        log_file.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            text=True,
        ) as process,
    ):
        try:
            yield Forward(process, log_file)
        finally:
            process.terminate()
