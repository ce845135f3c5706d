"""One part of a stack: a process that is started, gets ready, is stopped or crashed, and may be started again."""

from __future__ import annotations

import time
import urllib.request
from abc import ABC, abstractmethod
from typing import Self

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
        """What to raise when it is not ready in time."""
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
