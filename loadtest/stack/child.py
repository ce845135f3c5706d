"""One child process: its log in a file, its end tied to ours, stopped by us and not by the terminal's Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadtest.stack import tethered
from loadtest.stack.errors import StackError

_CONSTANT = frozenset({"ts", "service", "logger"})
_LONGEST = 400


class LogFile:
    """A process's log since it was opened here; older lines of the file are not looked at."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0
        self._read = self._start

    def text(self) -> str:
        return self._from(self._start).decode(errors="replace")

    def new_lines(self) -> list[str]:
        """The whole lines written since the last call."""
        written = self._from(self._read)
        whole = written[: written.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()

    def tail(self, lines: int = 20) -> str:
        """Its last lines, for a person; a stack trace of Java would crowd out the message above it."""
        last = [line for line in self.text().splitlines() if line and not line.startswith("\tat ")][-lines:]
        if not last:
            return f"Its log, {self.path}, is empty."
        return "\n".join([f"The end of {self.path}:", *(f"  | {readable(line)}" for line in last)])

    def _from(self, position: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(position)
            return file.read()


def event(line: str) -> Mapping[str, Any] | None:
    """The fields of a JSON log line; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "event" in fields else None


def readable(line: str) -> str:
    """The line without what JSON adds to it; an exception last, from its end."""
    fields = event(line)
    if fields is None:
        return line[:_LONGEST]
    rest = {name: value for name, value in fields.items() if name not in _CONSTANT}
    exception = str(rest.pop("exception", "")).strip().splitlines()
    text = f"{rest.pop('level', '')}: {rest.pop('event')}"
    details = ", ".join(f"{name}={value}" for name, value in rest.items())
    text = f"{text} ({details})" if details else text
    return "\n  | ".join([text[:_LONGEST], *(f"  {each[:_LONGEST]}" for each in exception[-3:])])


_POLL_S = 0.001
# The kernel ends a tethered child with the thread that made it, so one thread that lasts makes them all.
_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="spawner")


class Child:
    """A running program.

    `name` is what messages call it; `log_file` gets its standard output and error, appended.
    """

    def __init__(
        self, name: str, command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = LogFile(log_file)
        self._process = _SPAWNER.submit(_spawn, command, log_file, {**os.environ, **(environment or {})}).result()

    @property
    def pid(self) -> int:
        """Its process id, which is its process group's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative signal number if a signal ended it."""
        return self._process.poll()

    def raise_if_ended(self, advice: str) -> None:
        """Raises StackError, with the end of the log and `advice`, when the process is gone."""
        if self.exit_code is not None:
            raise StackError(f"{self.name} ended with exit code {self.exit_code}. {advice}\n{self.log.tail()}")

    def terminate(self) -> None:
        """SIGTERM, and no waiting; a paused one goes on, to hear of it. Does nothing to a process that has ended."""
        if self._process.poll() is None:
            self._process.terminate()
            self.resume()

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
        """SIGSTOP: it keeps its connections and answers nothing; returns when each of its threads has stopped."""
        os.killpg(self.pid, signal.SIGSTOP)
        while not all(_has_stopped(file) for file in Path(f"/proc/{self.pid}/task").glob("*/stat")):
            time.sleep(_POLL_S)

    def resume(self) -> None:
        """SIGCONT."""
        os.killpg(self.pid, signal.SIGCONT)


def _has_stopped(stat_file: Path) -> bool:
    """The kernel's words on a thread: its state stands behind its name, which is in brackets."""
    try:
        return stat_file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] in "TtXZ"
    except OSError:  # it has ended
        return True


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
