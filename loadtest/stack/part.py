"""One part of a stack: a process that is started, gets ready, is stopped or crashed, and may be started again.

Any program of ours is one; some run to their end instead, in an environment of their own where packages do not fit.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from typing_extensions import override

from loadtest.screen import ERRORS
from loadtest.stack.child import Child
from loadtest.stack.errors import StackError

_POLL_S = 0.05
_PROBE_TIMEOUT_S = 2.0


def responds(address: str, path: str) -> bool:
    """Whether HTTP at host:port answers, and well: the usual `Part._answers` of what speaks it."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=_PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False


class Part(ABC):
    """A part called `name`; `advice` is what to look at when it does not start."""

    def __init__(self, name: str, advice: str) -> None:
        self.name = name
        self.advice = advice
        self._child: Child | None = None

    @abstractmethod
    def _spawn(self) -> Child:
        """Start the process. Raises StackError."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the process, which runs, does its work."""

    @property
    def child(self) -> Child:
        """The process of the last start."""
        assert self._child, f"The {self.name} was never started."
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and before its first start."""
        return self._child.exit_code if self._child else None

    def launch(self) -> None:
        """Start the process and do not wait until it is ready. Raises StackError."""
        assert self._child is None or self._child.exit_code is not None, f"The {self.name} is running already."
        self._child = self._spawn()

    def is_ready(self) -> bool:
        """Whether it does its work. Raises StackError, with the end of its log, when it has ended."""
        self.child.raise_if_ended(self.advice)
        return self._answers()

    def wait(self, timeout_s: float) -> None:
        """Return once it is ready. Raises StackError, and leaves nothing running, when that fails."""
        try:
            self._wait(timeout_s)
        except BaseException:
            self.kill()
            raise

    def _wait(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not self.is_ready():
            if time.monotonic() > deadline_s:
                raise self.too_late(timeout_s)
            time.sleep(_POLL_S)

    def too_late(self, timeout_s: float) -> StackError:
        """The error for a part that is not ready in time."""
        return StackError(f"{self.name} was not ready after {timeout_s:g} s. {self.advice}\n{self.child.log.tail()}")

    def start(self, timeout_s: float = 300.0) -> None:
        """Start, and return once it is ready, with its model loaded. Raises StackError."""
        self.launch()
        self.wait(timeout_s)

    def terminate(self) -> None:
        """Ask it to end, and do not wait."""
        if self._child:
            self._child.terminate()

    def stop(self, grace_s: float = 30.0) -> int | None:
        """Ask it to end, and end it after `grace_s`; its exit code, None if it never started."""
        return self._child.stop(grace_s) if self._child else None

    def kill(self) -> None:
        """End as a crash would; nothing to do if it never started, or ended."""
        if self._child:
            self._child.kill()

    def pause(self) -> None:
        """Freeze: connections stay, answers stop."""
        self.child.pause()

    def resume(self) -> None:
        self.child.resume()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


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
    """The standard output of `python -m MODULE ARGUMENTS`. Raises StackError if it fails or takes too long."""
    command = [sys.executable, "-m", module, *arguments]
    variables = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise StackError(f"{module} took more than {timeout_s:g} s") from None
    if done.returncode:
        raise StackError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


_LISTS = Path(__file__).parents[2] / "requirements"


def installed(name: str) -> bool:
    """Whether the environment of `requirements/NAME.txt` is there, as it is listed."""
    stamp, listed = Path(sys.prefix) / name / "installed", _LISTS / f"{name}.txt"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == listed.read_text(encoding="utf-8")


def python_of(name: str) -> Path:
    """The Python of the environment of `requirements/NAME.txt`, installed when that has changed. Raises StackError."""
    root, listed = Path(sys.prefix) / name, _LISTS / f"{name}.txt"
    python, stamp, wanted = root / "bin" / "python", root / "installed", listed.read_text(encoding="utf-8")
    if not installed(name):
        ERRORS.print(f"installing {len(wanted.splitlines())} packages: {name}")
        _uv("venv", "--quiet", "--allow-existing", "--python", sys.executable, str(root))
        _uv("pip", "sync", "--quiet", "--python", str(python), str(listed))
        stamp.write_text(wanted, encoding="utf-8")
    return python


def _uv(*arguments: str) -> None:
    command = [str(Path(sys.prefix) / "uv" / "bin" / "uv"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"the packages cannot be installed:\n{done.stderr[-2000:]}")
