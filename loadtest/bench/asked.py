"""Programs that are asked on stdin and answer on stdout, a line of JSON each: what starts slowly is started once."""

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


class Asked:
    """One such program, such as `engine_forward`; its first line, `said`, shows that it is ready."""

    def __init__(self, process: subprocess.Popen[str], log_file: Path) -> None:
        """Wait for that line. Raises StackError when the program ended instead."""
        self.pid = process.pid
        self._process = process
        self._log_file = log_file
        self.said: dict[str, str] = self._line()

    @property
    def engine(self) -> str:
        """What computes, where an engine is timed."""
        return f"{self.said['engine']} engine, {self.said['dtype']}"

    def seconds(self, steps: int) -> float:
        """Seconds that an engine takes for `steps` batches."""
        return float(self.ask(steps))

    def ask(self, what: object) -> Any:
        """Its answer. Raises StackError when it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise StackError(f"a program that was asked has ended; its log is {self._log_file}")
        return json.loads(line)


@contextmanager
def asked(command: Sequence[str], log_file: Path) -> Generator[Asked]:
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
            yield Asked(process, log_file)
        finally:
            process.terminate()
