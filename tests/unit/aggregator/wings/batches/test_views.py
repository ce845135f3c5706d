"""Status, counts and files of a batch follow from the objects that there are."""

from __future__ import annotations

import msgspec
import pytest

from aggregator.wings.batches.objects import (
    MOST_EXPIRES_AFTER_S,
    Batch,
    Cancel,
    Head,
    Kind,
    Plan,
    Problem,
    Refusal,
    Result,
    Slice,
    file_of,
    folder_of,
    is_batch,
    new_id,
    written_id,
)
from aggregator.wings.batches.views import Seen, Status, page_of, shown_batch, shown_written

ID = "batch_" + "a" * 32
BATCH = Batch(ID, "me", "file-1", "/v1/embeddings", "24h", 10.0, 86410.0, {"k": "v"}, output_expires_after_s=100)
PLAN = Plan(12.0, "m", (Slice(0, 9, 3), Slice(9, 9, 2)))
GOOD, MIXED = Head(20.0, 3, 0, 300, 300, 6), Head(30.0, 1, 1, 100, 150, 2)
EXPIRED, CANCELLED = Head(31.0, 0, 2, 0, 90, 0, 0, 2), Head(32.0, 0, 2, 0, 90, 0, 0, 0, 2)


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        (Seen(BATCH), Status.VALIDATING),
        (Seen(BATCH, refusal=Refusal(11.0, (Problem("empty_file", "x"),))), Status.FAILED),
        (Seen(BATCH, PLAN), Status.IN_PROGRESS),
        (Seen(BATCH, PLAN, heads={0: GOOD}), Status.IN_PROGRESS),
        (Seen(BATCH, PLAN, heads={0: GOOD}, cancel=Cancel(15.0)), Status.CANCELLING),
        (Seen(BATCH, cancel=Cancel(11.0)), Status.CANCELLING),
        (Seen(BATCH, PLAN, heads={0: GOOD, 1: MIXED}), Status.COMPLETED),
        (Seen(BATCH, PLAN, heads={0: GOOD, 1: MIXED}, cancel=Cancel(15.0)), Status.COMPLETED),
        (Seen(BATCH, PLAN, heads={0: GOOD, 1: CANCELLED}, cancel=Cancel(15.0)), Status.CANCELLED),
        (Seen(BATCH, PLAN, heads={0: GOOD, 1: EXPIRED}), Status.EXPIRED),
        (Seen(BATCH, PLAN, result=Result((GOOD, MIXED))), Status.COMPLETED),
    ],
)
def test_the_status_follows_from_the_objects(seen: Seen, status: Status) -> None:
    assert seen.status is status
    assert shown_batch(seen)["status"] == status


def test_a_batch_at_work_counts_the_parts_that_there_are() -> None:
    shown = shown_batch(Seen(BATCH, PLAN, heads={1: MIXED}))
    assert shown["request_counts"] == {"total": 5, "completed": 1, "failed": 1}
    assert (shown["output_file_id"], shown["error_file_id"], shown["completed_at"]) == (None, None, None)
    assert (shown["in_progress_at"], shown["created_at"], shown["expires_at"]) == (12, 10, 86410)


def test_a_whole_batch_has_its_files_and_times() -> None:
    shown = shown_batch(Seen(BATCH, PLAN, heads={0: GOOD, 1: MIXED}))
    assert shown["request_counts"] == {"total": 5, "completed": 4, "failed": 1}
    assert shown["output_file_id"] == written_id(ID, Kind.OUTPUT)
    assert shown["error_file_id"] == written_id(ID, Kind.ERRORS)
    assert (shown["completed_at"], shown["finalizing_at"], shown["expired_at"]) == (30, 30, None)
    assert (shown["usage"]["total_tokens"], shown["metadata"], shown["model"]) == (8, {"k": "v"}, "m")


def test_a_batch_whose_every_line_failed_has_no_output() -> None:
    bad = Head(20.0, 0, 3, 0, 70, 0)
    shown = shown_batch(Seen(BATCH, PLAN, heads={0: bad, 1: bad}))
    assert (shown["status"], shown["output_file_id"]) == ("completed", None)
    assert shown["error_file_id"] is not None


def test_a_refused_file_has_its_faults() -> None:
    shown = shown_batch(Seen(BATCH, refusal=Refusal(11.0, (Problem("url_mismatch", "x", 3, "url"),))))
    assert shown["errors"] == {
        "object": "list",
        "data": [{"code": "url_mismatch", "message": "x", "param": "url", "line": 3}],
    }
    assert shown["failed_at"] == 11


def test_a_time_beyond_all_bounds_is_shown_as_the_last_one() -> None:
    batch = msgspec.structs.replace(BATCH, output_expires_after_s=10**400)
    shown = shown_written(Seen(batch, PLAN, heads={0: GOOD, 1: MIXED}), Kind.OUTPUT)
    assert shown is not None
    assert shown["expires_at"] == 30 + MOST_EXPIRES_AFTER_S


def test_a_deleted_file_is_neither_named_nor_shown() -> None:
    seen = Seen(BATCH, PLAN, heads={0: GOOD, 1: MIXED}, gone=frozenset({Kind.OUTPUT}))
    assert shown_batch(seen)["output_file_id"] is None
    assert shown_written(seen, Kind.OUTPUT) is None
    errors = shown_written(seen, Kind.ERRORS)
    assert errors is not None
    assert (errors["bytes"], errors["purpose"], errors["expires_at"]) == (50, "batch_output", 130)


def test_ids_name_files_and_batches_and_nothing_else() -> None:
    own = new_id("file-", 1e9)
    assert file_of(own) == (own, Kind.INPUT)
    assert file_of(written_id(ID, Kind.ERRORS)) == (ID, Kind.ERRORS)
    assert is_batch(new_id("batch_", 1e9))
    for name in ("file-../../x", "file-", f"{own}/data", own.upper(), "batch_1", f"{own}-other", f"{own}\n"):
        assert file_of(name) is None
        assert not is_batch(name)
    assert new_id("file-", 1e9) < new_id("file-", 1e9 + 1)


def test_a_tenants_folder_is_no_text_of_its_name() -> None:
    assert folder_of("../x") != folder_of("x")
    assert folder_of("../x").removeprefix("t/").isalnum()


def test_a_page_begins_behind_an_id() -> None:
    listed = [{"id": name} for name in "abcd"]
    page = page_of(listed, "a", 2)
    assert ([each["id"] for each in page["data"]], page["has_more"], page["last_id"]) == (["b", "c"], True, "c")
    assert not page_of(listed, "c", 2)["has_more"]
    assert page_of([], "", 2)["first_id"] is None
