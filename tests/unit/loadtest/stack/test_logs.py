"""Logs of the parts, read as they grow and shown to a person."""

import json
from pathlib import Path

from loadtest.stack.logs import LogFile, event, readable

LOADED = {"ts": "2026-01-01", "level": "info", "service": "s", "logger": "l", "event": "loaded the model", "took_s": 2}


def test_new_lines_come_once_and_only_when_they_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "part.log"
    file.parent.mkdir()
    file.write_text("of an earlier start\n")
    log = LogFile(file)
    with file.open("a") as writer:
        writer.write("one\ntw")
        writer.flush()
        assert log.new_lines() == ["one"]
        assert log.new_lines() == []
        writer.write("o\n")
        writer.flush()
    assert log.new_lines() == ["two"]
    assert log.text() == "one\ntwo\n"


def test_the_tail_leaves_out_the_stack_of_java(tmp_path: Path) -> None:
    file = tmp_path / "kafka.log"
    log = LogFile(file)
    file.write_text("starting\nERROR the disk is full\n\tat a.b.C(C.java:1)\n\tat a.b.D(D.java:2)\n")
    assert log.tail(2).splitlines()[1:] == ["  | starting", "  | ERROR the disk is full"]
    assert LogFile(file).tail() == f"Its log, {file}, is empty."


def test_a_json_line_is_shown_as_its_event_and_fields() -> None:
    assert readable(json.dumps(LOADED)) == "info: loaded the model (took_s=2)"
    assert readable("Traceback …") == "Traceback …"


def test_an_exception_is_shown_from_its_end() -> None:
    line = json.dumps({**LOADED, "level": "error", "event": "failed", "took_s": 1, "exception": "a\nb\nc\nd"})
    assert readable(line).splitlines() == ["error: failed (took_s=1)", "  |   b", "  |   c", "  |   d"]


def test_only_a_json_object_with_an_event_is_one() -> None:
    assert event(json.dumps(LOADED)) == LOADED
    assert event('{"level": "info"}') is None
    assert event("{broken") is None
    assert event("plain") is None
