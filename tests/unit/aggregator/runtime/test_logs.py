from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from aggregator.runtime import logs


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure("test-service", "info", stream)
    yield stream
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_fields(written: io.StringIO) -> None:
    logging.getLogger("pool").info("joined a model server", extra={"address": "a:1", "tokens": 5})
    (line,) = lines(written)
    assert datetime.fromisoformat(line.pop("ts")).tzinfo is not None
    assert line == {
        "level": "info",
        "service": "test-service",
        "logger": "pool",
        "event": "joined a model server",
        "address": "a:1",
        "tokens": 5,
    }


def test_less_than_the_level_is_not_written(written: io.StringIO) -> None:
    logging.getLogger("pool").debug("looked")
    assert not lines(written)


def test_an_exception_keeps_to_its_line(written: io.StringIO) -> None:
    try:
        int("wrong")
    except ValueError:
        logging.getLogger("pool").exception("stopped")
    (line,) = lines(written)
    assert line["event"] == "stopped"
    assert line["exception"].splitlines()[-1].startswith("ValueError: ")


def test_what_json_does_not_know_is_written_as_text(written: io.StringIO) -> None:
    logging.getLogger("pool").info("looked", extra={"where": {1}, "text": "two\nlines"})
    (line,) = lines(written)
    assert (line["where"], line["text"]) == ("{1}", "two\nlines")


def test_warnings_are_events_too(written: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    (line,) = lines(written)
    assert line["logger"] == "py.warnings"
    assert "DeprecationWarning: old" in line["event"]
