"""Write logs as one JSON object per line on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

_OF_CALLS = ("grpc", "aiohttp", "aggregator.sources.calls", "aggregator.sources.grpc", "aggregator.sources.http")
"""Loggers whose records callers can cause."""

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One line per event: time, level, service, logger, event, and the fields given as `extra`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The record as one JSON object; values that JSON does not know are written as text."""
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


class Restraint(logging.Filter):
    """Limits the records of gRPC, as callers decide how many there are and what they hold.

    An argument of such a record may be a header with a credential, so only the constant part is written: of each logger
    at most `LINES` per minute, with the number that was `left_out`.
    """

    LINES = 10
    _PERIOD_S = 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._periods: dict[str, _Period] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_OF_CALLS):
            return True
        now_s = self._clock()
        period = self._periods.get(record.name)
        if period is None or now_s >= period.ends_s:
            left_out = 0 if period is None else period.left_out
            period = self._periods[record.name] = _Period(now_s + self._PERIOD_S)
            if left_out:
                record.left_out = left_out
        period.written += 1
        if period.written > self.LINES:
            period.left_out += 1
            return False
        if record.args:
            record.msg, record.args = str(record.msg).replace("%s", "…"), ()
            record.exc_info = None
        return True


@dataclass(slots=True)
class _Period:
    """The records of one logger in one minute."""

    ends_s: float
    written: int = 0
    left_out: int = 0


def configure(service: str, level: str, stream: TextIO | None = None) -> None:
    """Write the records of every logger from `level` on, warnings included, to `stream` (standard error).

    Messages are constant and in the past tense ("joined a model server"); variable parts go into `extra`. The text of
    a query is never logged.
    """
    writer = logging.StreamHandler(stream if stream is not None else sys.stderr)
    writer.setFormatter(JsonFormatter(service))
    writer.addFilter(Restraint())
    root = logging.getLogger()
    root.handlers[:] = [writer]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
