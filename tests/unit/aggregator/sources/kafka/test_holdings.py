"""Records and their replies are held within the topics' part of the ledger, from their fetch to their outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from aggregator.admission.ledger import Intake
from aggregator.errors import Code
from aggregator.request.request import Failure, Receive, Request
from aggregator.request.vector import CompletedBatch, Vector
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka.decode import record_of
from aggregator.sources.kafka.outgoing import OutgoingRecord
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import reply_all
from tests.support.kafka_source import KafkaSourceOverFakes
from tests.support.virtual_time import in_virtual_time

KIB, MIB = 1024, 1024 * 1024
SETTINGS = KafkaSettings(
    topics=(TopicSettings(name="in"), TopicSettings(name="other")), reply_topic="out", group_id="g"
)
TOO_LONG = Failure(Code.OUT_OF_RANGE, "too long")


class Held(KafkaSourceOverFakes):
    """A source whose topics may hold so much; a vector of its model takes `dimensions` floats."""

    def __init__(self, most: int, dimensions: int = 0) -> None:
        super().__init__(SETTINGS, "in", "other", "out", "in-dlt", intake=Intake(most), dimensions=lambda _: dimensions)

    def send(self, *texts: str, topic: str = "in", headers: Sequence[tuple[str, bytes]] = (), count: int = 1) -> None:
        value = pb.EmbedRequest(inputs=[pb.Input(text=text) for text in texts]).SerializeToString()
        for _ in range(count):
            self.kafka.append(OutgoingRecord(topic, 0, b"k", value, list(headers)))

    @property
    def held_bytes(self) -> int:
        """What the ledger says, brought up to date."""
        self.consumer.holdings.full()
        return self.consumer.intake.total

    async def answer(self, requests: Sequence[Request]) -> None:
        for request in requests:
            request.fail(TOO_LONG)
        await reply_all(self.source, requests)
        self.changed()

    def changed(self) -> None:
        """What the pipeline says after each reply."""
        self.source.pause(lambda _model, _task: False, lambda _model, _priority: False)


@dataclass
class Taking:
    """Takes whatever the source hands out, until cancelled."""

    source: Held
    taken: list[Request] = field(default_factory=list[Request])

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for receive in self.source.source.receivers:
                tasks.create_task(self._take(receive))

    async def _take(self, receive: Receive) -> None:
        while requests := await receive():
            self.taken += requests


@in_virtual_time
async def test_records_count_with_all_they_hold_until_their_outcome() -> None:
    async with Held(64 * MIB, dimensions=1000).started() as held:
        held.send("x" * 10_000, headers=[("h" * 1000, b"v" * 1000)] * 3)
        requests = await held.source.receive()
        assert 20_000 + 6000 + 4000 <= held.held_bytes < 20_000 + 6000 + 4000 + 4000
        await held.answer(requests)
        assert held.held_bytes == 0


@in_virtual_time
async def test_a_completed_record_behind_one_that_is_not_keeps_nothing() -> None:
    async with Held(64 * MIB).started() as held:
        held.send("x", headers=[("h", b"v")], count=2)
        first, second = await held.source.receive()
        await held.answer([second])
        record = record_of(second)
        assert (record.value, record.key, list(record.headers)) == (None, None, [])
        assert record_of(first).value


@pytest.mark.parametrize("size", [10 * KIB, 900 * KIB])
@in_virtual_time
async def test_fetching_pauses_at_the_topics_part_and_goes_on_as_outcomes_come(size: int) -> None:
    async with Held(16 * MIB).started() as held:
        held.send("x" * size, count=200)
        taking = Taking(held)
        task = asyncio.create_task(taking.run())
        peaks: list[int] = []
        done = 0
        for _ in range(20_000):  # large ones are decoded on a thread, which virtual time does not wait for
            await asyncio.sleep(1)
            peaks.append(held.held_bytes)
            done += len(taking.taken)
            answered, taking.taken = taking.taken, []
            await held.answer(answered)
            if done == 200:
                break
        assert done == 200
        assert max(peaks) < 16 * MIB + 2 * size * 32  # what the first records of a poll may bring
        assert held.consumer.paused() == set()
        task.cancel()


@in_virtual_time
async def test_a_topic_at_its_share_leaves_another_room() -> None:
    async with Held(MIB).started() as held:
        held.send("x" * 10 * KIB, count=60)
        taking = Taking(held)
        task = asyncio.create_task(taking.run())
        await asyncio.sleep(5)
        assert {topic for topic, _ in held.consumer.paused()} == {"in"}
        held.send("y", topic="other")
        await asyncio.sleep(5)
        assert record_of(taking.taken[-1]).topic == "other"
        task.cancel()


@in_virtual_time
async def test_requests_whose_replies_have_no_room_wait_in_their_order() -> None:
    async with Held(MIB, dimensions=1000).started() as held:
        held.send(*["a"] * 64, count=9)  # 40 kB as they come, 300 kB with their vectors
        taking = Taking(held)
        task = asyncio.create_task(taking.run())
        offsets: list[int] = []
        while len(offsets) < 9:
            await asyncio.sleep(1)
            assert 1 <= len(taking.taken) <= 3
            assert held.held_bytes < 1.2 * MIB
            offsets += [record_of(request).offset for request in taking.taken]
            answered, taking.taken = taking.taken, []
            await held.answer(answered)
        assert offsets == list(range(9))
        task.cancel()


@in_virtual_time
async def test_one_request_of_a_topic_always_goes_however_little_is_free() -> None:
    async with Held(MIB, dimensions=1000).started() as held:
        held.send(*["a"] * 160)  # 760 kB with its vectors
        held.send(*["a"] * 160, topic="other")
        taking = Taking(held)
        task = asyncio.create_task(taking.run())
        await asyncio.sleep(5)
        assert {record_of(request).topic for request in taking.taken} == {"in", "other"}
        task.cancel()


@in_virtual_time
async def test_a_record_whose_answer_could_never_be_held_is_refused() -> None:
    async with Held(MIB, dimensions=1000).started() as held:
        held.send(*["a"] * 300)
        task = asyncio.create_task(Taking(held).run())
        await asyncio.sleep(5)
        (reply,) = held.kafka.records("out")
        status = pb.EmbedResponse.FromString(reply.value or b"").status
        assert status.code == Code.INVALID_ARGUMENT
        assert "bytes of memory: at most 838860 are taken; ask for fewer inputs" in status.message
        assert held.held_bytes == 0
        task.cancel()


@in_virtual_time
async def test_requests_wait_for_no_room_that_a_written_dead_letter_left() -> None:
    async with Held(MIB, dimensions=1000).started() as held:
        held.send(*["a"] * 64, count=4)  # two of them fit
        taking = Taking(held)
        task = asyncio.create_task(taking.run())
        await asyncio.sleep(1)
        failed, taking.taken = taking.taken, []
        assert len(failed) == 2
        held.kafka.flights_held = True
        for request in failed:
            request.fail(Failure(Code.INTERNAL, "it broke", attempts=4))
        replying = asyncio.create_task(held.answer(failed))
        for _ in range(2):  # their replies, and then their dead letters
            await asyncio.sleep(1)
            (flight,) = held.kafka.under_way
            held.kafka.acknowledge(flight)
        await replying
        await asyncio.sleep(10)
        assert [record_of(request).offset for request in taking.taken] == [2, 3]
        task.cancel()


@in_virtual_time
async def test_requests_wait_for_no_room_that_an_answered_refusal_left() -> None:
    async with Held(MIB, dimensions=1000).started() as held:
        held.kafka.flights_held = True
        empty = pb.EmbedRequest(tenant="x" * 4000).SerializeToString()
        for _ in range(30):
            held.kafka.append(OutgoingRecord("in", 0, b"k", empty, []))
        held.send(*["a"] * 64, count=2)
        taking = Taking(held)
        task = asyncio.create_task(taking.run())
        await asyncio.sleep(1)
        count = len(taking.taken)
        (flight,) = held.kafka.under_way
        held.kafka.acknowledge(flight)
        await asyncio.sleep(10)
        assert (count, len(taking.taken)) == (1, 2)
        task.cancel()


@in_virtual_time
async def test_what_waits_for_room_is_left_to_the_next_reader_at_the_end() -> None:
    async with Held(MIB, dimensions=1000).started() as held:
        held.send(*["a"] * 64, count=9)
        taking = Taking(held)
        task = asyncio.create_task(taking.run())
        await asyncio.sleep(1)
        count = len(taking.taken)
        held.consumer.stop_fetching()
        await task
        await held.answer(taking.taken)
        assert len(taking.taken) == count


@in_virtual_time
async def test_revoked_requests_wait_no_longer_and_hold_nothing() -> None:
    async with Held(MIB, dimensions=1000).started() as held:
        held.send(*["a"] * 64, count=9)
        taking = Taking(held)
        task = asyncio.create_task(taking.run())
        await asyncio.sleep(1)
        (partition,) = [each for each in held.consumer.partitions.values() if each.tp.topic == "in"]
        held.source.revoked(partition.committed_offset.fence())
        held.consumer.partitions.pop(partition.tp)  # type: ignore[attr-defined]
        count = len(taking.taken)
        held.changed()
        await asyncio.sleep(1)
        assert (len(taking.taken), held.held_bytes) == (count, 0)
        task.cancel()


@in_virtual_time
async def test_a_reply_that_waits_for_the_producer_keeps_no_vectors() -> None:
    async with Held(64 * MIB, dimensions=4).started() as held:
        held.kafka.flights_held = True
        held.send("a")
        (request,) = await held.source.receive()
        before = held.held_bytes
        batch = CompletedBatch("b", "m", "r", 0, np.ones((1, 4), np.float32), 0.0, 0.0)
        request.complete_input(0, Vector(batch, 0, 1, 0.0))
        replying = asyncio.create_task(reply_all(held.source, [request]))
        await asyncio.sleep(1)
        (outcome,) = request.outcomes
        assert (outcome.batch.matrix.size, outcome.batch.batch_id) == (0, "b")  # type: ignore[union-attr]
        assert held.held_bytes == before
        held.kafka.acknowledge(held.kafka.under_way[0])
        await replying
        assert held.held_bytes == 0
