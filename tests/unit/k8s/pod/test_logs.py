from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from k8s.pod import logs
from tests.support.written_logs import written_logs


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    with written_logs("test-service") as stream:
        yield stream


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


def test_an_exception_keeps_to_its_line(written: io.StringIO) -> None:
    try:
        int("wrong")
    except ValueError:
        logging.getLogger("pool").exception("stopped")
    (line,) = lines(written)
    assert line["event"] == "stopped"
    assert line["exception"].splitlines()[-1].startswith("ValueError: ")


def test_what_grpc_puts_into_a_line_is_not_written(written: io.StringIO) -> None:
    try:
        b"Bearer secret\xff".decode()
    except UnicodeDecodeError:
        logging.getLogger("grpc._cython.cygrpc").exception("Invalid encoding on %s", b"Bearer secret\xff")
    (line,) = lines(written)
    assert line["event"] == "Invalid encoding on …"
    assert "secret" not in written.getvalue()


def test_a_logger_of_grpc_writes_ten_lines_a_minute_and_counts_the_rest() -> None:
    now_s = 0.0
    restraint = logs.Restraint(lambda: now_s)

    def written(count: int, name: str = "grpc.aio") -> list[logging.LogRecord]:
        records = [logging.makeLogRecord({"name": name, "msg": "went wrong"}) for _ in range(count)]
        return [record for record in records if restraint.filter(record)]

    assert len(written(1000)) == 10
    assert len(written(5, "grpc._cython.cygrpc")) == 5
    assert len(written(1000, "pool")) == 1000
    now_s = 61.0
    first, second = written(2)
    assert vars(first)["left_out"] == 990
    assert "left_out" not in vars(second)
