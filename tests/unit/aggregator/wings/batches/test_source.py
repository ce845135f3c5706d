"""Chunks as requests: each becomes one part, whoever computes it, and then its record is complete."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from aggregator.errors import Code
from aggregator.request.request import Failure, Request
from aggregator.scheduler.work_item import Priority
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.embedding import EMBEDDING
from aggregator.sources.http.embeddings import EmbeddingsReader
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.wings.batches.chunk import origin_of
from aggregator.wings.batches.objects import HEAD_BYTES, Batch, Pointer, batch_path, data_path, head_of, part_path
from aggregator.wings.batches.source import BatchSource
from aggregator.wings.batches.views import shown_batch
from tests.support.fake_kafka import FakeKafka
from tests.support.fake_source import reply_all
from tests.support.http_bodies import AnyRevision
from tests.support.virtual_time import in_virtual_time
from tests.unit.aggregator.wings.batches.test_desk import FOLDER, URL, Office

TOPIC = "chunks"
REFUSED = Failure(Code.INVALID_ARGUMENT, "no")
AWAY = Failure(Code.UNAVAILABLE, "away", retryable=True, retry_after_s=1.0)


class Bench:
    """A source over a Kafka and a store in memory."""

    def __init__(self, model: str = "m", dimensions: int = 4) -> None:
        self.office = Office()
        self.kafka = FakeKafka(TOPIC)
        self.forgotten: list[Callable[[Request], bool]] = []
        settings = KafkaSettings(topics=(TopicSettings(name=TOPIC),), group_id="g")
        self.source = BatchSource(
            self.office.desk,
            self.kafka.consumer(settings),
            {URL: (EMBEDDING, EmbeddingsReader(AnyRevision(), trusts_token_ids=True))},
            default_model=model,
            dimensions=lambda _: dimensions,
            forget=self.forgotten.append,
            clock=lambda: asyncio.get_running_loop().time(),
        )

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[None]:
        running = asyncio.create_task(self.source.run())
        yield
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def batch(self, lines: int | bytes, *, window_s: float = 3600.0) -> Batch:
        """One that is planned, with a record for each chunk."""
        office = self.office
        file_id = await (office.file(lines) if isinstance(lines, int) else office.upload(lines))
        batch = await office.batch(file_id, window_s)
        office.written.clear()
        await office.desk.begin(FOLDER, batch.id)
        for pointer in office.written:
            self.kafka.append(OutgoingRecord(TOPIC, 0, None, msgspec.json.encode(pointer), ()))
        return batch

    async def receive(self) -> Sequence[Request]:
        """The requests of a chunk, which come some at a time."""
        requests: list[Request] = []
        while not requests or origin_of(requests[0]).chunk.is_unread:
            requests += await self.source.receivers[0]()
        return requests

    async def fail(self, requests: Sequence[Request], failure: Failure) -> None:
        for request in requests:
            request.fail(failure)
        await reply_all(self.source, requests)
        await self.source.delivered()

    def part(self, batch: Batch, chunk: int = 0) -> list[dict[str, Any]]:
        return [*map(json.loads, self.office.store.kept[part_path(FOLDER, batch.id, chunk)][HEAD_BYTES:].splitlines())]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@in_virtual_time
async def test_a_chunk_becomes_one_part(bench: Bench) -> None:
    batch = await bench.batch(3)
    async with bench.started():
        requests = await bench.receive()
        assert {request.priority for request in requests} == {Priority.BACKGROUND}
        assert {request.tenant for request in requests} == {"me"}
        await bench.fail(requests[:1], REFUSED)
        assert part_path(FOLDER, batch.id, 0) not in bench.office.store.kept
        await bench.fail(requests[1:], REFUSED)
        assert [each["custom_id"] for each in bench.part(batch)] == ["l0", "l1", "l2"]


@in_virtual_time
async def test_a_chunk_that_has_its_part_is_not_computed_again(bench: Bench) -> None:
    batch = await bench.batch(300)
    await bench.office.answer(batch, 0)
    async with bench.started():
        requests = await bench.receive()
        assert [origin_of(request).chunk.pointer.chunk for request in requests] == [1] * 44


@in_virtual_time
async def test_a_line_is_tried_again_where_that_can_help(bench: Bench) -> None:
    batch = await bench.batch(1)
    async with bench.started():
        await bench.fail(await bench.receive(), AWAY)
        assert part_path(FOLDER, batch.id, 0) not in bench.office.store.kept
        again = await bench.source.receivers[1]()
        assert [list(request.inputs) for request in again] == [["x"]]
        await bench.fail(again, REFUSED)
        assert [each["response"]["status_code"] for each in bench.part(batch)] == [400]


@in_virtual_time
async def test_a_line_that_fails_each_time_is_an_error_in_the_end(bench: Bench) -> None:
    batch = await bench.batch(1)
    async with bench.started():
        requests = await bench.receive()
        for _ in range(8):
            await bench.fail(requests, AWAY)
            requests = await bench.source.receivers[1]()
        await bench.fail(requests, AWAY)
        assert [each["response"]["status_code"] for each in bench.part(batch)] == [503]


@in_virtual_time
async def test_a_line_that_cannot_be_read_again_ends_its_chunk(bench: Bench) -> None:
    batch = await bench.batch(1)
    async with bench.started():
        requests = await bench.receive()
        await bench.fail(requests, AWAY)
        bench.source._reader._forms = {}  # noqa: SLF001 - as where the tokenizer of its ids was replaced meanwhile
        receiving = asyncio.ensure_future(bench.source.receivers[1]())
        await asyncio.sleep(5.0)
        await bench.source.delivered()
        assert [each["response"]["status_code"] for each in bench.part(batch)] == [500]
        receiving.cancel()


@in_virtual_time
async def test_chunks_of_a_batch_past_its_window_cost_no_computation(bench: Bench) -> None:
    batch = await bench.batch(3, window_s=10.0)
    bench.office.now_s += 11.0
    async with bench.started():
        receiving = asyncio.create_task(bench.receive())
        await asyncio.sleep(1.0)
        assert head_of(bench.office.store.kept[part_path(FOLDER, batch.id, 0)]).expired == 3
        receiving.cancel()


@in_virtual_time
async def test_a_cancelled_batch_leaves_the_queue_with_what_it_has(bench: Bench) -> None:
    batch = await bench.batch(3)
    async with bench.started():
        requests = await bench.receive()
        await bench.fail(requests[:1], REFUSED)
        await bench.office.store.create(batch_path(FOLDER, batch.id, "cancel"), b'{"at_s":1.0}')
        await asyncio.sleep(3.0)
        await bench.source.delivered()
        assert all(bench.forgotten[0](request) for request in requests)
        codes = [each["error"] and each["error"]["code"] for each in bench.part(batch)]
        assert codes == [None, "batch_cancelled", "batch_cancelled"]
        await bench.fail(requests[1:], REFUSED)  # it ran meanwhile, and changes nothing
        assert len(bench.part(batch)) == 3


@pytest.mark.parametrize(
    "bytes_left", [None, lambda data: data[:-20], lambda data: data[:-64], lambda data: b"\xff" * len(data)]
)
@in_virtual_time
async def test_a_batch_whose_file_is_gone_or_another_has_failed(
    bench: Bench, bytes_left: Callable[[bytes], bytes] | None
) -> None:
    batch = await bench.batch(300)
    await bench.office.answer(batch, 0)
    data = bench.office.store.kept.pop(data_path(FOLDER, batch.input_file_id))
    if bytes_left is not None:
        bench.office.store.kept[data_path(FOLDER, batch.input_file_id)] = bytes_left(data)
    async with bench.started():
        receiving = asyncio.create_task(bench.receive())
        await asyncio.sleep(1.0)
        receiving.cancel()
        shown = shown_batch(await bench.office.seen(batch))
        assert (shown["status"], shown["failed_at"]) == ("failed", int(bench.office.now_s))
        assert shown["request_counts"] == {"total": 300, "completed": 256, "failed": 44}
        assert shown["errors"]["data"][0]["code"] == "file_not_found"
        assert shown["output_file_id"] is not None  # what was computed before


@in_virtual_time
async def test_a_part_waits_for_a_store_that_is_away(bench: Bench) -> None:
    batch = await bench.batch(1)
    async with bench.started():
        requests = await bench.receive()
        bench.office.store.is_away = True
        for request in requests:
            request.fail(REFUSED)
        await reply_all(bench.source, requests)
        await asyncio.sleep(5.0)
        bench.office.store.is_away = False
        await bench.source.delivered()
        assert len(bench.part(batch)) == 1


@in_virtual_time
async def test_a_batch_asks_for_what_ends_it_in_time(bench: Bench) -> None:
    batch = await bench.batch(3, window_s=1000.0)
    size_bytes = bench.office.store.kept[f"{FOLDER}/files/{batch.input_file_id}/data"]
    async with bench.started():
        await bench.receive()
        bench.office.now_s += 500.0
        paced = bench.source.paced("m")
        assert paced.tokens_per_s == pytest.approx(len(size_bytes) / 4 / 500.0)
        assert paced.held_tokens == pytest.approx(len(size_bytes) / 4)
        assert bench.source.paced("another").tokens_per_s == 0.0


@in_virtual_time
async def test_batches_take_turns(bench: Bench) -> None:
    first = await bench.batch(600)
    bench.office.now_s += 1.0
    second = await bench.batch(300)
    async with bench.started():
        order = [origin_of((await bench.receive())[0]).chunk.pointer.batch for _ in range(4)]
        assert order[:2] in ([first.id, second.id], [first.id, first.id])
        assert second.id in order[:3]


@pytest.mark.parametrize(
    "value", [b"no chunk", b'{"folder":"\xff","batch":"b"}', b'{"folder":"f","batch":"b","x":' + b"[" * 100_000]
)
@in_virtual_time
async def test_a_record_that_names_no_chunk_is_left_behind(bench: Bench, value: bytes) -> None:
    bench.kafka.append(OutgoingRecord(TOPIC, 0, None, value, ()))
    await bench.batch(1)
    async with bench.started():
        assert len(await bench.receive()) == 1


def test_a_pointer_says_where_its_chunk_is() -> None:
    pointer = Pointer(FOLDER, "batch_1", 3, 10, 20, 2, 5.0, "m")
    assert msgspec.json.decode(msgspec.json.encode(pointer), type=Pointer) == pointer
