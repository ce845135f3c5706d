"""The beginning of a process, before its imports, which take seconds."""

from __future__ import annotations

import os
import signal

from k8s.pod.open_files import raise_limit

_ENDED = 128 + signal.SIGTERM
"""A shell's exit code for a process that SIGTERM has ended."""


def begin() -> None:
    """Let SIGTERM end this process, and let it open all files that it may.

    The kernel drops a signal that the first process of a container has no handler for. Nothing is accepted yet, so
    nothing is left to finish; a process that serves has its own handler.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_ENDED))
    raise_limit()
