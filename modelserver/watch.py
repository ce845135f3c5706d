"""The work of the engine's thread, and whether it takes longer than it may."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum


class Phase(StrEnum):
    """The watched phases."""

    LOAD = "load"
    PROFILE = "profile"
    STEP = "step"
    CLOSE = "close"


TIMEOUTS_S: dict[str, float] = {
    Phase.LOAD: 1800.0,  # tens of GB from a slow disk or the hub; also to compare the engines
    Phase.PROFILE: 300.0,  # warm-up compiles CUDA graphs; the measurement itself takes 15 s
    Phase.STEP: 120.0,  # a step takes less than a second on a GPU, and seconds on a busy CPU
    Phase.CLOSE: 60.0,  # vLLM waits for its own processes
}
"""After each of these the process ends with exit code 1: an engine that hangs does not recover."""


class PhaseWatchdog:
    """Entered on the engine's thread, read on any other."""

    def __init__(
        self, timeouts_s: Mapping[str, float] = TIMEOUTS_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeouts_s = timeouts_s
        self._clock = clock
        self._current: tuple[Phase, float] | None = None

    @contextmanager
    def phase(self, phase: Phase) -> Generator[None]:
        self._current = phase, self._clock()
        try:
            yield
        finally:
            self._current = None

    def overdue(self) -> str | None:
        current = self._current
        if current is None:
            return None
        phase, since_s = current
        timeout_s = self._timeouts_s[phase]
        return f"{phase} takes longer than {timeout_s:g} s" if self._clock() - since_s > timeout_s else None
