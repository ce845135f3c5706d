"""Become another program, one that gets SIGTERM when the process that requested it ends.

    python -I -S tethered.py PARENT_PID PROGRAM ARGUMENT...

A program of its own, because code between fork and exec is not safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, command: list[str]) -> None:
    """Tie this process to its parent, then exec `command`."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        sys.exit("the parent ended before its child began")
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
