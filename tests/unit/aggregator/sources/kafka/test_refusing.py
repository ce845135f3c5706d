"""Records that are no requests are answered beside the intake: no other record waits for that."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition

from aggregator.admission.ledger import Intake
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka.outgoing import OutgoingRecord
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.kafka_source import KafkaSourceOverFakes
from tests.support.virtual_time import in_virtual_time

SETTINGS = KafkaSettings(
    topics=(TopicSettings(name="in"), TopicSettings(name="other")), reply_topic="out", group_id="g"
)
REQUEST = pb.EmbedRequest(request_id="q", inputs=[pb.Input(text="a")]).SerializeToString()
LARGE = pb.EmbedRequest(request_id="large", inputs=[pb.Input(text="x" * 20_000)]).SerializeToString()
EMPTY = pb.EmbedRequest(request_id="empty").SerializeToString()
IN = TopicPartition("in", 0)


class FakedSource(KafkaSourceOverFakes):
    """A source whose answers go to two partitions, of which the second has no leader."""

    def __init__(self, intake: Intake | None = None) -> None:
        super().__init__(SETTINGS, "in", "other", "in-dlt", intake=intake)
        self.kafka.create_topic("out", 2)
        self.kafka.leaderless.add(("out", 1))

    def send(self, topic: str, value: bytes, *, replies: int) -> None:
        """A record that asks for its answer in this partition."""
        headers = [("kafka_replyPartition", replies.to_bytes(4, "big"))]
        self.kafka.append(OutgoingRecord(topic, 0, b"k", value, headers))


@in_virtual_time
async def test_no_record_waits_for_the_answer_to_a_refused_one() -> None:
    async with FakedSource().started() as faked:
        faked.send("in", EMPTY, replies=1)
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(1)
        for _ in range(3):
            faked.send("other", REQUEST, replies=0)
        requests = await asyncio.wait_for(receiving, 10)
        assert [request.request_id for request in requests] == ["q"] * 3
        delivering = asyncio.create_task(faked.source.delivered())
        await asyncio.sleep(10)
        assert not delivering.done()
        faked.kafka.leaderless.clear()
        await delivering
        await asyncio.sleep(1)
        (answer,) = faked.kafka.records("out", 1)
        assert pb.EmbedResponse.FromString(answer.value or b"").request_id == "empty"
        assert faked.kafka.committed[IN] == 1


@in_virtual_time
async def test_no_large_record_waits_for_the_answer_to_a_refused_one() -> None:
    async with FakedSource().started() as faked:
        faked.send("in", pb.EmbedRequest(request_id="x" * 20_000).SerializeToString(), replies=1)
        receiving = asyncio.create_task(faked.source.receive())
        receiving_large = asyncio.create_task(faked.source.receive_large())
        await asyncio.sleep(1)
        faked.send("other", LARGE, replies=0)
        (request,) = await asyncio.wait_for(receiving_large, 10)
        assert request.request_id == "large"
        receiving.cancel()


@in_virtual_time
async def test_a_topic_stops_when_many_of_its_refused_records_wait() -> None:
    async with FakedSource(Intake(4 << 20)).started() as faked:
        value = pb.EmbedRequest(request_id="x" * 4000).SerializeToString()
        for _ in range(5000):
            faked.send("in", value, replies=1)
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(60)
        assert faked.consumer.paused() == {IN}
        (backlog,) = (each for each in faked.source.backlogs() if each.topic == "in")
        assert 0 < backlog.position < 1000
        faked.send("other", REQUEST, replies=0)
        assert [request.request_id for request in await asyncio.wait_for(receiving, 10)] == ["q"]
        faked.kafka.leaderless.clear()
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(60)
        assert len(faked.kafka.records("out", 1)) == 5000
        assert faked.kafka.committed[IN] == 5000
        receiving.cancel()


@in_virtual_time
async def test_a_bug_in_refusing_ends_the_intake() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.flights_held = True
        faked.send("in", EMPTY, replies=0)
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(1)
        (flight,) = faked.kafka.under_way
        flight.landed.set_exception(RuntimeError("a bug"))
        faked.send("in", REQUEST, replies=0)
        with pytest.raises(RuntimeError, match="a bug"):
            await receiving
