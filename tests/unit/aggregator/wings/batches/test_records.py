"""The first record of a batch, which a reader writes again if it was lost; and objects that cannot be parsed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec
import pytest

from aggregator.wings.batches.desk import Desk
from aggregator.wings.batches.objects import Batch, FileMeta, Plan, Pointer, batch_path, new_id
from aggregator.wings.batches.parts import NoRecords
from aggregator.wings.batches.store import StoreAway
from aggregator.wings.batches.views import Status, shown_batch
from tests.unit.aggregator.wings.batches.test_desk import FOLDER, URL, Office


async def written(*desks: Desk) -> None:
    """The records of these desks, whatever becomes of them."""
    await asyncio.gather(*(task for desk in desks for task in desk._tasks.values()))  # noqa: SLF001


async def test_a_batch_that_lost_its_record_is_written_again() -> None:
    office = Office()
    batch = await office.batch(await office.file(3))
    desk = office.another()
    await desk.seen(FOLDER, batch.id)
    await written(office.desk, desk)
    assert len(office.written) == 1
    office.now_s += 20.0
    for _ in range(3):
        await desk.seen(FOLDER, batch.id)
        await written(desk)
    assert office.written == [Pointer(FOLDER, batch.id)] * 2


async def test_a_batch_is_created_shown_and_cancelled_while_kafka_is_away() -> None:
    office = Office()
    office.broker.clear()
    batch = await office.batch(await office.file(3))
    office.now_s += 20.0
    for _ in range(3):  # nobody waits, so nobody sends it again: that would be a second batch
        assert [each.status for each in (await office.desk.all_seen(FOLDER))[0]] == [Status.VALIDATING]
    assert len(office.desk._tasks) == 1  # noqa: SLF001 - one record, however many look
    cancelled = await office.desk.cancel(FOLDER, batch.id)
    assert cancelled is not None
    await asyncio.wait_for(office.desk._tasks[f"end {batch.id}"], 1.0)  # noqa: SLF001
    assert (await office.seen(batch)).status is Status.CANCELLED
    await office.desk.close()


async def test_a_record_that_kafka_refuses_is_written_at_a_later_look(caplog: pytest.LogCaptureFixture) -> None:
    office = Office()

    async def refuse(_: Sequence[Pointer]) -> None:
        raise NoRecords("Kafka refuses")

    desk = Desk(office.store, office.settings, refuse, office.metrics, wall_clock=lambda: office.now_s)
    batch = Batch(new_id("batch_", office.now_s), "me", await office.file(3), URL, "1h", office.now_s, 2e9)
    assert (await desk.create(FOLDER, batch)).status is Status.VALIDATING
    await written(desk)
    assert "a batch cannot begin now" in caplog.text
    office.now_s += 20.0
    other = office.another()
    await other.seen(FOLDER, batch.id)
    await written(other)
    assert office.written == [Pointer(FOLDER, batch.id)]


@pytest.mark.parametrize(
    ("name", "data"), [("batch", b""), ("plan", b'{"at_s":'), ("cancel", b"\xff"), ("parts/000000", b"{")]
)
async def test_an_object_that_cannot_be_read_is_a_fault_of_the_store(name: str, data: bytes) -> None:
    office = Office()
    batch = await office.batch(await office.file(3))
    await office.desk.begin(FOLDER, batch.id)
    office.store.kept[batch_path(FOLDER, batch.id, name)] = data
    with pytest.raises(StoreAway, match=f"cannot be read: .*{name}"):
        await office.another().seen(FOLDER, batch.id)


@pytest.mark.parametrize(("is_cancelled", "status"), [(True, Status.CANCELLED), (False, Status.EXPIRED)])
async def test_a_batch_that_ends_before_its_file_is_read_is_not_read(is_cancelled: bool, status: Status) -> None:
    office = Office()
    batch = await office.batch(await office.file(600))
    if is_cancelled:
        await office.desk.cancel(FOLDER, batch.id)
    else:
        office.now_s += 3601.0
        await office.desk.seen(FOLDER, batch.id)
    await office.desk._tasks[f"end {batch.id}"]  # noqa: SLF001
    office.written.clear()
    await office.another().begin(FOLDER, batch.id)
    assert not office.written
    shown = shown_batch(await office.seen(batch))
    assert (shown["status"], shown["request_counts"]["total"]) == (status, 0)
    assert (shown["output_file_id"], shown["error_file_id"]) == (None, None)
    assert office.metrics.ended.sums == {(status,): 1}


async def test_validation_ends_once_there_is_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office()
    file_id = new_id("file-", 1.0)
    await office.desk.keep_file(FOLDER, FileMeta(file_id, "a.jsonl", 40 << 20, 1.0))
    batch = await office.batch(file_id)
    reads = 0

    async def stream(_path: str, _start: int, length: int) -> AsyncGenerator[bytes]:
        nonlocal reads
        for _ in range(0, length, 1 << 20):
            reads += 1
            yield b"\n"
            if reads == 20:
                await office.store.create(batch_path(FOLDER, batch.id, "plan"), msgspec.json.encode(Plan(1.0, "m", ())))

    monkeypatch.setattr(office.store, "stream", stream)
    assert await office.desk.plan(FOLDER, batch) == Plan(1.0, "m", ())
    assert reads == 32
