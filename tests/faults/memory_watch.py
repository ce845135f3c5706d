"""Watch the memory of processes: the peak, and whether it keeps growing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import median

_INTERVAL_S = 0.25


class MemoryWatch:
    """Reads the memory of the added processes until `stop`; `peak_mib` is the largest of all readings.

    `readings_mib` are what each held, by process id, four times a second.
    """

    def __init__(self) -> None:
        self.peak_mib = 0.0
        self.readings_mib: dict[int, list[float]] = {}
        self._pids: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="memory watch", daemon=True)
        self._thread.start()

    def add(self, pid: int) -> None:
        self._pids.add(pid)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            for pid in tuple(self._pids):
                self.peak_mib = max(self.peak_mib, resident_mib(pid, "VmHWM"))
                held = resident_mib(pid)
                if held:
                    self.readings_mib.setdefault(pid, []).append(held)


def growth_mib(readings: Sequence[float]) -> float:
    """By how much the last quarter of the readings lies above the second; the first is for warming up."""
    quarter = len(readings) // 4
    return median(readings[-quarter:]) - median(readings[quarter : 2 * quarter]) if quarter else 0.0


def resident_mib(pid: int, which: str = "VmRSS") -> float:
    """A process's resident memory, now or (VmHWM) at its peak; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) / 1024
    return 0.0
