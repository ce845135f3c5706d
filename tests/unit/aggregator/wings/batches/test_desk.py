"""Files and batches over a store: every step may be done twice, and by anyone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from aggregator.wings.batches.answers import End, Lines
from aggregator.wings.batches.batches import QuotaReached
from aggregator.wings.batches.desk import Desk, InUse
from aggregator.wings.batches.metrics import BatchMetrics
from aggregator.wings.batches.objects import (
    Batch,
    FileMeta,
    Kind,
    Plan,
    Pointer,
    batch_path,
    data_path,
    folder_of,
    new_id,
    part_path,
    written_id,
)
from aggregator.wings.batches.settings import BatchesSettings
from aggregator.wings.batches.views import Seen, Status, shown_batch
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.unit.aggregator.wings.batches.fake_store import FakeStore

FOLDER, OTHER = folder_of("me"), folder_of("someone")
URL = "/v1/embeddings"
INPUTS = 256


class Office:
    """A desk with its clock, and the records that it wrote. `broker`: is set while that takes records."""

    def __init__(self, **settings: Any) -> None:
        self.now_s = 1e9
        self.store = FakeStore()
        self.metrics = BatchMetrics(MetricsBuffer())
        self.written: list[Pointer] = []
        self.broker = asyncio.Event()
        self.broker.set()
        self.settings = BatchesSettings(store="file:///x", **settings)
        self.desk = self.another()

    def another(self) -> Desk:
        """The desk of another aggregator."""

        async def produce(pointers: Sequence[Pointer]) -> None:
            await self.broker.wait()
            await asyncio.sleep(0)  # as a real one, which takes its time
            self.written += pointers

        async def sleep(_: float) -> None:
            await asyncio.sleep(0)

        waits: Callable[[float], Awaitable[None]] = sleep
        return Desk(self.store, self.settings, produce, self.metrics, wall_clock=lambda: self.now_s, sleep=waits)

    async def file(self, lines: int, **meta: float) -> str:
        """Upload a file of valid lines."""
        return await self.upload(
            b"".join(
                b'{"custom_id":"l%d","url":"/v1/embeddings","body":{"input":"x"}}\n' % each for each in range(lines)
            ),
            **meta,
        )

    async def upload(self, data: bytes, **meta: float) -> str:
        file_id = new_id("file-", self.now_s)
        await self.store.create(data_path(FOLDER, file_id), data)
        await self.desk.keep_file(FOLDER, FileMeta(file_id, "a.jsonl", len(data), self.now_s, **meta))
        return file_id

    async def batch(self, file_id: str, window_s: float = 3600.0, expires_after_s: int = 0) -> Batch:
        batch_id = new_id("batch_", self.now_s)
        batch = Batch(batch_id, "me", file_id, URL, "1h", self.now_s, self.now_s + window_s, None, expires_after_s)
        await self.desk.create(FOLDER, batch)
        return batch

    async def answer(self, batch: Batch, *chunks: int) -> None:
        """Write the parts of these chunks."""
        plan = await self.desk.plan(FOLDER, batch)
        assert plan is not None
        for chunk in chunks:
            lines = await self.desk.lines(FOLDER, batch, plan, chunk)
            for place in range(lines.left):
                lines.answer(place, "r", b'"%d"' % place, 3)
            await self.desk.write_part(part_path(FOLDER, batch.id, chunk), lines.part(self.now_s))

    async def seen(self, batch: Batch) -> Seen:
        """What another aggregator sees."""
        seen = await self.another().seen(FOLDER, batch.id)
        assert seen is not None
        return seen

    async def content(self, file_id: str) -> list[str]:
        """The custom ids of a file that a batch wrote."""
        data = await self.desk.content(FOLDER, file_id)
        assert data is not None
        return [json.loads(line)["custom_id"] for line in b"".join([piece async for piece in data]).splitlines()]


async def test_a_batch_goes_from_its_file_to_its_output() -> None:
    office = Office()
    batch = await office.batch(await office.file(600))
    assert (await office.seen(batch)).status is Status.VALIDATING
    await office.desk.begin(FOLDER, batch.id)
    assert [each.chunk for each in office.written] == [-1, 0, 1, 2]
    assert (await office.seen(batch)).status is Status.IN_PROGRESS
    await office.answer(batch, 2, 0, 1)
    seen = await office.seen(batch)
    assert (seen.status, seen.plan and seen.plan.lines) == (Status.COMPLETED, 600)
    assert await office.content(written_id(batch.id, Kind.OUTPUT)) == [f"l{each}" for each in range(600)]
    assert await office.desk.content(FOLDER, written_id(batch.id, Kind.ERRORS)) is None


async def test_a_result_is_noted_once_all_parts_are_there() -> None:
    office = Office()
    batch = await office.batch(await office.file(300))
    await office.answer(batch, 0)
    await office.seen(batch)
    result = batch_path(FOLDER, batch.id, "result")
    assert result not in office.store.kept
    await office.answer(batch, 1)
    await office.seen(batch)
    assert result in office.store.kept


async def test_validation_that_is_repeated_changes_nothing() -> None:
    office = Office()
    batch = await office.batch(await office.file(300))
    await office.another().begin(FOLDER, batch.id)
    plan = office.store.kept[batch_path(FOLDER, batch.id, "plan")]
    await office.answer(batch, 0)
    office.now_s += 5.0
    office.written.clear()
    await office.another().begin(FOLDER, batch.id)
    assert office.store.kept[batch_path(FOLDER, batch.id, "plan")] is plan
    assert [each.chunk for each in office.written] == [1]  # the other one has its part


async def test_a_bad_file_costs_no_record() -> None:
    office = Office()
    batch = await office.batch(await office.upload(b"no json\n"))
    await office.desk.begin(FOLDER, batch.id)
    seen = await office.seen(batch)
    assert seen.status is Status.FAILED
    assert seen.refusal is not None
    assert seen.refusal.problems[0].code == "invalid_json_line"
    assert [each.chunk for each in office.written] == [-1]


async def test_the_lines_that_nobody_computed_are_cancelled() -> None:
    office = Office()
    batch = await office.batch(await office.file(600))
    await office.answer(batch, 1)
    cancelled = await office.desk.cancel(FOLDER, batch.id)
    assert cancelled is not None
    assert cancelled.status is Status.CANCELLING
    await asyncio.gather(*office.desk._tasks.values())  # noqa: SLF001
    seen = await office.seen(batch)
    assert seen.status is Status.CANCELLED
    assert await office.content(written_id(batch.id, Kind.OUTPUT)) == [f"l{each}" for each in range(256, 512)]
    assert len(await office.content(written_id(batch.id, Kind.ERRORS))) == 600 - 256


async def test_a_batch_expires_with_the_parts_that_it_has() -> None:
    office = Office()
    batch = await office.batch(await office.file(300), window_s=60.0)
    await office.answer(batch, 0)
    office.now_s += 61.0
    await office.desk.seen(FOLDER, batch.id)
    await asyncio.gather(*office.desk._tasks.values())  # noqa: SLF001
    seen = await office.seen(batch)
    assert (seen.status, sum(each.completed for each in seen.parts)) == (Status.EXPIRED, 256)


async def test_batches_are_listed_page_by_page_the_newest_first() -> None:
    office = Office()
    file_id = await office.file(3)
    made: list[str] = []
    for _ in range(3):
        made.insert(0, (await office.batch(file_id)).id)
        office.now_s += 1.0
    first, has_more = await office.desk.all_seen(FOLDER, most=2)
    assert ([seen.batch.id for seen in first], has_more) == (made[:2], True)
    rest, has_more = await office.desk.all_seen(FOLDER, made[1], 2)
    assert ([seen.batch.id for seen in rest], has_more) == (made[2:], False)


async def test_a_batch_that_ended_cannot_be_cancelled() -> None:
    office = Office()
    batch = await office.batch(await office.file(3))
    await office.answer(batch, 0)
    cancelled = await office.desk.cancel(FOLDER, batch.id)
    assert cancelled is not None
    assert cancelled.status is Status.COMPLETED


async def test_another_tenants_ids_find_nothing() -> None:
    office = Office()
    file_id = await office.file(3)
    batch = await office.batch(file_id)
    await office.answer(batch, 0)
    await office.seen(batch)
    desk = office.another()
    for each in (file_id, written_id(batch.id, Kind.OUTPUT)):
        assert await desk.file(FOLDER, each) is not None
        assert await desk.file(OTHER, each) is None
        assert await desk.content(OTHER, each) is None
        assert not await desk.delete_file(OTHER, each)
    assert await desk.seen(OTHER, batch.id) is None
    assert await desk.cancel(OTHER, batch.id) is None
    assert (await desk.files(OTHER), await desk.all_seen(OTHER)) == ([], ([], False))


async def test_a_tenant_stores_no_more_than_it_may() -> None:
    office = Office(max_stored_bytes=2000)
    assert await office.desk.room_bytes(FOLDER) == 2000
    await office.file(50)
    with pytest.raises(QuotaReached, match="delete some"):
        await office.desk.room_bytes(FOLDER)
    assert await office.desk.room_bytes(OTHER) == 2000


async def test_a_tenant_has_no_more_unfinished_batches_than_it_may() -> None:
    office = Office(max_unfinished=1)
    file_id = await office.file(3)
    batch = await office.batch(file_id)
    with pytest.raises(QuotaReached, match="1 of your batches"):
        await office.batch(file_id)
    await office.answer(batch, 0)
    office.now_s += 1.0
    await office.batch(file_id)


async def test_batches_created_at_once_are_no_more_than_a_tenant_may_have() -> None:
    office = Office(max_unfinished=5)
    file_id = await office.file(3)
    created = await asyncio.gather(*(office.batch(file_id) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(each, QuotaReached) for each in created) == 15


async def test_old_batches_make_no_new_one_slower() -> None:
    office = Office(max_unfinished=5)
    file_id = await office.file(3)
    for _ in range(4):
        await office.answer(await office.batch(file_id), 0)
        office.now_s += 1.0
    office.now_s += 9 * 86400.0
    listed = office.store.listed
    await office.batch(file_id)
    assert office.store.listed == listed


async def test_a_batch_counts_as_unfinished_for_all_of_the_longest_window() -> None:
    office = Office(max_unfinished=1)
    batch = await office.batch(await office.file(3))
    office.now_s += 7 * 86400.0
    assert [seen.batch.id for seen in await office.desk._unfinished(FOLDER)] == [batch.id]  # noqa: SLF001


async def test_a_batch_fails_whose_lines_are_more_than_its_tenant_may_have() -> None:
    office = Office(max_unfinished_lines=500)
    first, second = await office.batch(await office.file(300)), await office.batch(await office.file(201))
    for batch in (first, second):
        await office.desk.begin(FOLDER, batch.id)
    shown = shown_batch(await office.seen(second))
    assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("failed", "request_limit_exceeded")
    await office.answer(first, 0, 1)
    assert (await office.seen(first)).status is Status.COMPLETED
    third = await office.batch(second.input_file_id)
    await office.desk.begin(FOLDER, third.id)
    assert (await office.seen(third)).status is Status.IN_PROGRESS


async def test_each_file_line_and_batch_is_counted_once() -> None:
    office = Office()
    batch = await office.batch(await office.file(300))
    await office.desk.begin(FOLDER, batch.id)
    await office.answer(batch, 0)
    await office.desk.cancel(FOLDER, batch.id)
    for _ in range(3):
        await office.seen(batch)
        await asyncio.sleep(0.01)
    refused = await office.batch(await office.upload(b""))
    await office.desk.begin(FOLDER, refused.id)
    metrics = office.metrics
    assert metrics.ended.sums == {("cancelled",): 1, ("failed",): 1}
    assert metrics.lines.sums == {("completed",): 256, ("ended",): 44}
    assert metrics.bytes.sums.keys() == {("uploaded",), ("written",)}


async def test_a_file_that_a_batch_reads_is_not_deleted() -> None:
    office = Office()
    file_id = await office.file(3)
    batch = await office.batch(file_id)
    with pytest.raises(InUse, match=batch.id):
        await office.desk.delete_file(FOLDER, file_id)
    await office.answer(batch, 0)
    assert await office.desk.delete_file(FOLDER, file_id)
    assert await office.desk.file(FOLDER, file_id) is None
    assert data_path(FOLDER, file_id) not in office.store.kept


async def test_deleting_all_that_a_batch_wrote_frees_its_parts() -> None:
    office = Office()
    batch = await office.batch(await office.file(3))
    await office.answer(batch, 0)
    output = written_id(batch.id, Kind.OUTPUT)
    assert await office.desk.delete_file(FOLDER, output)
    await asyncio.gather(*office.desk._tasks.values())  # noqa: SLF001
    assert part_path(FOLDER, batch.id, 0) not in office.store.kept
    assert not await office.desk.delete_file(FOLDER, output)
    seen = await office.seen(batch)
    assert (seen.status, sum(each.completed for each in seen.parts)) == (Status.COMPLETED, 3)


async def test_parts_go_also_where_the_one_who_deletes_them_is_ended() -> None:
    office = Office()
    batch = await office.batch(await office.file(3))
    await office.answer(batch, 0)
    await office.seen(batch)
    await office.store.create(batch_path(FOLDER, batch.id, "output.gone"), b"")  # and then it was ended
    desk = office.another()
    await desk.seen(FOLDER, batch.id)
    await asyncio.gather(*desk._tasks.values())  # noqa: SLF001
    assert part_path(FOLDER, batch.id, 0) not in office.store.kept


async def test_both_files_of_a_batch_expire_where_one_was_deleted() -> None:
    office = Office()
    batch = await office.batch(await office.file(3), expires_after_s=30)
    plan = await office.desk.plan(FOLDER, batch)
    assert plan is not None
    lines = await office.desk.lines(FOLDER, batch, plan, 0)
    lines.answer(0, "r", b"1", 3)
    lines.end_all(End.CANCELLED)
    await office.desk.write_part(part_path(FOLDER, batch.id, 0), lines.part(office.now_s))
    output, errors = (written_id(batch.id, kind) for kind in (Kind.OUTPUT, Kind.ERRORS))
    await office.seen(batch)
    assert await office.desk.delete_file(FOLDER, output)
    assert await office.desk.file(FOLDER, errors) is not None
    office.now_s += 31.0
    assert await office.desk.file(FOLDER, errors) is None
    await asyncio.gather(*office.desk._tasks.values())  # noqa: SLF001
    assert part_path(FOLDER, batch.id, 0) not in office.store.kept
    assert await office.another().files(FOLDER) == [await office.desk.file(FOLDER, batch.input_file_id)]


async def test_a_deleted_file_is_gone_for_every_aggregator() -> None:
    office = Office()
    file_id = await office.file(3)
    other = office.another()
    assert await other.uploaded(FOLDER, file_id) is not None
    assert await office.desk.delete_file(FOLDER, file_id)
    assert await other.uploaded(FOLDER, file_id) is None
    assert not await other.delete_file(FOLDER, file_id)


async def test_files_go_when_they_expire() -> None:
    office = Office()
    file_id = await office.file(3, expires_s=office.now_s + 50.0)
    batch = await office.batch(file_id, expires_after_s=30)
    await office.answer(batch, 0)
    assert len(await office.desk.files(FOLDER)) == 2
    office.now_s += 31.0
    await office.seen(batch)
    assert [each["id"] for each in await office.another().files(FOLDER)] == [file_id]
    office.now_s += 31.0
    assert await office.desk.files(FOLDER) == []
    assert not any(path.endswith("data") or "parts" in path for path in office.store.kept)


async def test_an_expired_file_is_kept_while_a_batch_reads_it() -> None:
    office = Office()
    file_id = await office.file(300, expires_s=office.now_s + 3.0)
    batch = await office.batch(file_id)
    office.now_s += 4.0
    desk = office.another()
    assert (await desk.file(FOLDER, file_id), await desk.files(FOLDER)) == (None, [])  # it is hidden
    await desk.begin(FOLDER, batch.id)  # and read
    assert [each.chunk for each in office.written] == [-1, 0, 1]
    assert await desk.content(FOLDER, file_id) is None
    await office.answer(batch, 0, 1)
    assert (await office.seen(batch)).status is Status.COMPLETED
    assert data_path(FOLDER, file_id) in office.store.kept
    assert file_id not in [each["id"] for each in await desk.files(FOLDER)]
    assert data_path(FOLDER, file_id) not in office.store.kept


@pytest.mark.parametrize(("is_late", "status"), [(False, Status.CANCELLED), (True, Status.EXPIRED)])
async def test_a_batch_whose_file_is_gone_ends_as_it_would(is_late: bool, status: Status) -> None:
    office = Office()
    batch = await office.batch(await office.file(300))
    await office.answer(batch, 0)
    del office.store.kept[data_path(FOLDER, batch.input_file_id)]
    if is_late:
        office.now_s += 3601.0
        await office.desk.seen(FOLDER, batch.id)
    else:
        await office.desk.cancel(FOLDER, batch.id)
    await asyncio.gather(*office.desk._tasks.values())  # noqa: SLF001
    seen = await office.seen(batch)
    assert seen.status is status
    shown = shown_batch(seen)
    assert shown["request_counts"] == {"total": 300, "completed": 256, "failed": 44}
    assert "44 of its requests were not computed" in shown["errors"]["data"][0]["message"]
    assert len(await office.content(written_id(batch.id, Kind.OUTPUT))) == 256
    assert shown["error_file_id"] is None


async def test_a_batch_whose_file_goes_before_it_is_read_has_failed() -> None:
    office = Office()
    batch = await office.batch(await office.file(3))
    desk = office.another()
    assert await desk.uploaded(FOLDER, batch.input_file_id) is not None  # it knows of the file
    del office.store.kept[data_path(FOLDER, batch.input_file_id)]
    await desk.begin(FOLDER, batch.id)
    seen = await office.seen(batch)
    assert (seen.status, [each.code for each in seen.problems]) == (Status.FAILED, ["file_not_found"])
    assert await office.desk._unfinished(FOLDER) == []  # noqa: SLF001


async def test_what_is_kept_of_the_store_is_bounded() -> None:
    office = Office()
    batch = await office.batch(await office.file(3))
    desk = office.another()
    for place in range(40):
        desk.kept.keep(f"x{place}", place, 1 << 20)
    assert desk.kept.size_bytes <= 16 * 1024 * 1024
    assert (desk.kept.get("x0"), desk.kept.get("x39")) == (None, 39)
    assert isinstance(await desk.plan(FOLDER, batch), Plan)


async def test_whoever_writes_a_part_first_is_right() -> None:
    office = Office()
    batch = await office.batch(await office.file(3))
    await office.answer(batch, 0)
    plan = await office.desk.plan(FOLDER, batch)
    assert plan is not None
    late: Lines = await office.desk.lines(FOLDER, batch, plan, 0)
    late.end_all(End.CANCELLED)
    assert not await office.store.create(part_path(FOLDER, batch.id, 0), late.part(office.now_s))
    assert (await office.seen(batch)).status is Status.COMPLETED
