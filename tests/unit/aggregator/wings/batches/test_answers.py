"""The part of a chunk: each line once, those that failed behind the others."""

from __future__ import annotations

import json

import pytest

from aggregator.errors import Code
from aggregator.request.request import Failure
from aggregator.wings.batches.answers import End, Lines
from aggregator.wings.batches.objects import HEAD_BYTES, Head, head_of

BATCH = "batch_" + "0" * 32


def split(part: bytes) -> tuple[Head, list[dict[str, object]], list[dict[str, object]]]:
    """A part's head, the lines that succeeded, and the others."""
    head = head_of(part)
    good, bad = part[HEAD_BYTES:][: head.output_bytes], part[HEAD_BYTES + head.output_bytes :]
    assert len(part) == HEAD_BYTES + head.size_bytes
    return head, [*map(json.loads, good.splitlines())], [*map(json.loads, bad.splitlines())]


def test_a_part_has_the_answers_in_the_order_of_the_file() -> None:
    lines = Lines(BATCH, 7, ["a", "b", "c", "d"])
    lines.fail(2, Failure(Code.INVALID_ARGUMENT, "empty"))
    lines.answer(3, "r3", b'{"x":3}', 5)
    lines.answer(0, "r0", b'{"x":0}', 2, 9)
    lines.end(1, End.CANCELLED)
    head, good, bad = split(lines.part(6.0))
    assert head == Head(6.0, 2, 2, head.output_bytes, head.size_bytes, 7, 9, 0, 1)
    assert [each["custom_id"] for each in good] == ["a", "d"]
    assert good[0]["response"] == {"status_code": 200, "request_id": "r0", "body": {"x": 0}}
    assert [each["custom_id"] for each in bad] == ["b", "c"]
    assert bad[0]["response"] is None
    assert bad[0]["error"] == {"code": "batch_cancelled", "message": End.CANCELLED.value[1]}
    response = bad[1]["response"]
    assert isinstance(response, dict)
    assert (response["status_code"], response["body"]["error"]["message"]) == (400, "empty")


def test_a_line_that_comes_too_late_has_expired() -> None:
    lines = Lines(BATCH, 0, ["a"])
    lines.fail(0, Failure(Code.DEADLINE_EXCEEDED, "late"))
    head, _, bad = split(lines.part(0.0))
    assert (head.expired, bad[0]["error"]) == (1, {"code": "batch_expired", "message": End.EXPIRED.value[1]})


def test_lines_that_have_answers_keep_them_when_the_rest_ends() -> None:
    lines = Lines(BATCH, 0, ["a", "b", "c"])
    lines.answer(1, "r", b"{}", 1)
    lines.end_all(End.CANCELLED)
    head, good, bad = split(lines.part(0.0))
    assert (head.completed, head.cancelled, len(good), len(bad)) == (1, 2, 1, 2)


def test_a_part_that_misses_a_line_is_never_written() -> None:
    with pytest.raises(AssertionError, match="misses a line"):
        Lines(BATCH, 0, ["a"]).part(0.0)
