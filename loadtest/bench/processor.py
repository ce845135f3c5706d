"""Processor time of other processes."""

from __future__ import annotations

import psutil


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used so far, all its threads, for itself and in the kernel."""
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


def family_cpu_s(pid: int) -> float:
    """The same of a process and all that it has started."""
    process = psutil.Process(pid)
    return sum(cpu_s(each.pid) for each in (process, *process.children(recursive=True)))
