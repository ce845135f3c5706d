"""Answer the liveness and readiness probes of Kubernetes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Check = Callable[[], str | None]
"""Returns why the check fails, or None. Called on another thread than the event loop's."""
_BEAT_S = 1.0


@dataclass(slots=True)
class Health:
    """The named checks of `/livez` and `/readyz`; without a check a process is alive, but not ready."""

    live: dict[str, Check] = field(default_factory=dict[str, Check])
    ready: dict[str, Check] = field(default_factory=dict[str, Check])

    def liveness(self) -> tuple[bool, str]:
        """Whether the process is alive, and a line per check."""
        return _result(self.live, "ok")

    def readiness(self) -> tuple[bool, str]:
        if not self.ready:
            return False, "starting\n"
        return _result(self.ready, "ready")


class Heartbeat:
    """Shows other threads when the event loop last ran, by a timer of one second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._beat()

    def stop(self) -> None:
        self._timer.cancel()

    def within(self, most_s: float) -> Check:
        """The check that the loop ran in the last `most_s` seconds."""

        def check() -> str | None:
            silent_s = self._clock() - self._beaten_s
            return None if silent_s <= most_s else f"has not run for {silent_s:.0f} s"

        return check

    def _beat(self) -> None:
        self._beaten_s = self._clock()
        self._timer = self._loop.call_later(_BEAT_S, self._beat)


def _result(checks: Mapping[str, Check], word: str) -> tuple[bool, str]:
    lines: list[str] = []
    for name, check in tuple(checks.items()):  # the event loop may add one during this loop
        reason = check()
        lines.append(f"[{'-' if reason else '+'}]{name} {reason or 'ok'}\n")
    failed = any(line.startswith("[-]") for line in lines)
    return not failed, "".join(lines) + ("failed" if failed else word) + "\n"
