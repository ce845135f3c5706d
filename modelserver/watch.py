"""What the engine's thread does, and whether that takes longer than it may."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum

from modelserver.settings import TimeoutSettings


class Phase(StrEnum):
    """The watched phases, each with a time-out of the same name."""

    LOAD = "load"
    PROFILE = "profile"
    STEP = "step"
    CLOSE = "close"


class Watch:
    """Entered on the engine's thread, read on any other."""

    def __init__(self, timeouts: TimeoutSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeouts_s: dict[Phase, float] = {phase: getattr(timeouts, f"{phase}_s") for phase in Phase}
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
