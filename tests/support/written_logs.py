"""What a process writes to its log, as text."""

from __future__ import annotations

import io
import logging
from collections.abc import Generator
from contextlib import contextmanager

from k8s.pod import logs


@contextmanager
def written_logs(service: str) -> Generator[io.StringIO]:
    """Log as a process of this name does, into the text; afterwards as before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure(service, "info", stream)
    yield stream
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
