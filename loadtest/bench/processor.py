"""Processor time of other processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

LIMIT = 0.9
"""Cores of one thread from which it sets the pace: an event loop has no more than one."""


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used so far, all its threads, for itself and in the kernel."""
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


def family_cpu_s(pid: int) -> float:
    """The same of a process and all that it has started."""
    return sum(cpu_s(each.pid) for each in _family(pid))


def threads_s(pid: int) -> dict[int, float]:
    """Seconds of processor time of each thread of a process and of all that it has started, by its id."""
    threads = (thread for process in _family(pid) for thread in process.threads())
    return {each.id: each.user_time + each.system_time for each in threads}


def pin(pid: int, cores: Sequence[int]) -> None:
    """Let all threads of a process run on these cores alone."""
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, cores)


@dataclass(frozen=True, slots=True)
class Used:
    """The cores that a process used, and those of its busiest thread."""

    cores: float
    busiest: float

    @classmethod
    def between(cls, before: Mapping[int, float], after: Mapping[int, float], seconds: float) -> Used:
        used = [(value - before.get(thread, 0.0)) / max(seconds, 1e-9) for thread, value in after.items()]
        return cls(sum(used), max(used, default=0.0))

    @property
    def at_limit(self) -> bool:
        return self.busiest > LIMIT


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]
