"""Processor time of other processes."""

from __future__ import annotations

import psutil


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used so far, all its threads, for itself and in the kernel."""
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system
