"""Write logs as one JSON object per line on standard error."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

LEVELS = ("debug", "info", "warning", "error")

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One line per event: when, how grave, which service, what happened, and the fields given as `extra`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The record as one JSON object; what JSON does not know is written as text."""
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _OWN)
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(service: str, level: str, stream: TextIO | None = None) -> None:
    """Send every logger's records, warnings included, to `stream` (standard error) from `level` on.

    Messages are constant and in the past tense ("joined a model server"); what varies goes into `extra`. A
    query's text never goes into a log.
    """
    writer = logging.StreamHandler(stream if stream is not None else sys.stderr)
    writer.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [writer]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
