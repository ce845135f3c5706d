"""Write logs as one JSON object per line on standard error."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime

from typing_extensions import override

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One line per event: time, level, what happened, and the fields given as `extra`."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The record as one JSON object; what JSON does not know is written as text."""
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": "modelserver",
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _STANDARD_FIELDS)
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str) -> None:
    """Send every logger's records, warnings included, to standard error from `level` on.

    Messages are constant; what varies goes into `extra`. A query's text never goes into a log.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
