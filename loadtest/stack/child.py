"""One child process: its log in a file, its end tied to ours, stopped by us and not by the terminal's Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loadtest.stack import tethered
from loadtest.stack.errors import StackError

# The kernel ends a tethered child with the thread that made it, so one thread that lasts makes them all.
_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="spawner")
_POLL_S = 0.05


class Child:
    """A running program.

    `name` is what messages call it; `log_file` gets its standard output and error, appended.
    """

    def __init__(
        self, name: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log_file.stat().st_size if log_file.exists() else 0
        self._process = _SPAWNER.submit(_spawn, command, log_file, {**os.environ, **(environment or {})}).result()

    @property
    def pid(self) -> int:
        """Its process id, which is its process group's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative signal number if a signal ended it."""
        return self._process.poll()

    def log(self) -> str:
        """What it has logged since this start."""
        with self.log_file.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def wait_until(self, ready: Callable[[], bool], timeout_s: float, advice: str) -> None:
        """Poll until `ready()`.

        Raises StackError, with the end of the log and `advice`, when the process ends or time runs out first.
        """
        deadline_s = time.monotonic() + timeout_s
        while not ready():
            if self.exit_code is not None:
                raise StackError(self.obituary(advice))
            if time.monotonic() > deadline_s:
                raise StackError(f"{self.name} was not ready after {timeout_s:g} s. {advice}{self._tail()}")
            time.sleep(_POLL_S)

    def obituary(self, advice: str) -> str:
        """Why it is gone, as far as its log tells, and what to do."""
        return f"{self.name} ended with exit code {self.exit_code}. {advice}{self._tail()}"

    def terminate(self) -> None:
        """SIGTERM, and no waiting. Does nothing to a process that has ended."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self, grace_s: float) -> int:
        """SIGTERM, and SIGKILL after `grace_s`; its exit code. Does nothing to a process that has ended."""
        self.terminate()
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """SIGKILL, to it and its children, as a crash would; its exit code."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.killpg(self.pid, signal.SIGCONT)

    def _tail(self, lines: int = 20) -> str:
        # A stack trace of Java would crowd out the message above it.
        last = [line for line in self.log().rstrip().splitlines() if not line.startswith("\tat ")][-lines:]
        if not last:
            return f" Its log, {self.log_file}, is empty."
        return "\n".join([f" The end of {self.log_file}:", *(f"  | {line[:400]}" for line in last)])


def _spawn(command: Sequence[str], log_file: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log_file.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", tethered.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
