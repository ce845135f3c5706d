"""What becomes of a record that cannot be answered, or not well, among fakes and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from math import inf
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.errors import Code
from aggregator.request import Failure, Request
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka.codec import record_of
from aggregator.sources.kafka.records import OutgoingRecord
from protos.embedding.v1 import embedding_pb2 as pb
from tests.fakes.kafka_side import KafkaSide, among_fakes
from tests.fakes.records import FakeRecord
from tests.fakes.sources import reply_all

SETTINGS = KafkaSettings(
    topics=(TopicSettings(name="in"), TopicSettings(name="other")), reply_topic="out", group_id="g"
)
REQUEST = pb.EmbedRequest(request_id="q", inputs=[pb.Input(text=text) for text in ("a", "b")]).SerializeToString()
NAMES_ANOTHER = pb.EmbedRequest(request_id="q", model="n", inputs=[pb.Input(text="a")]).SerializeToString()
POISON = Failure(Code.INTERNAL, "it broke", attempts=4)

IN = TopicPartition("in", 0)


def reply_to(partition: int) -> list[tuple[str, bytes]]:
    """The headers that ask for an answer in this partition."""
    return [("kafka_replyPartition", partition.to_bytes(4, "big"))]


class Side(KafkaSide):
    """What a source wrote."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, "in", "other", "out", "in-dlt")

    async def complete(self, *outcomes: Failure) -> Request:
        """Take one request in, and complete it with these outcomes."""
        self.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, [("h", b"1")]))
        (request,) = await self.source.receive()
        for index, outcome in enumerate(outcomes):
            request.complete_input(index, outcome)
        await reply_all(self.source, [request])
        return request

    def written(self, topic: str) -> list[FakeRecord]:
        """The records of a topic."""
        return self.kafka.records(topic)

    def letter(self) -> Mapping[str, str]:
        """The headers of the only dead letter."""
        (record,) = self.written("in-dlt")
        return {name: value.decode() for name, value in record.headers}


def check(work: Callable[[Side], Coroutine[Any, Any, None]]) -> None:
    among_fakes(Side, work)


def test_what_failed_by_itself_is_answered_and_kept_with_the_number_of_tries() -> None:
    async def work(side: Side) -> None:
        await side.complete(Failure(Code.OUT_OF_RANGE, "too long"), POISON)
        await side.source.delivered()
        (reply,) = side.written("out")
        answer = pb.EmbedResponse.FromString(reply.value or b"")
        assert [each.status.code for each in answer.embeddings] == [Code.OUT_OF_RANGE, Code.INTERNAL]
        letter = side.letter()
        assert (letter["dlt-error-code"], letter["dlt-error-message"]) == ("INTERNAL", "it broke")
        assert letter["dlt-attempts"] == "4"

    check(work)


def test_what_the_sender_is_to_blame_for_is_answered_only() -> None:
    async def work(side: Side) -> None:
        await side.complete(Failure(Code.OUT_OF_RANGE, "too long"), Failure(Code.INVALID_ARGUMENT, "empty"))
        assert len(side.written("out")) == 1
        assert not side.written("in-dlt")

    check(work)


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (kafka_errors.TopicAuthorizationFailedError("out"), "forbidden"),
        (kafka_errors.UnknownTopicOrPartitionError("out"), "not_there"),
        (kafka_errors.MessageSizeTooLargeError(), "too_large"),
        (kafka_errors.PolicyViolationError(), "refused"),
    ],
)
def test_a_reply_that_cannot_be_written_is_what_became_of_its_request(refusal: Exception, reason: str) -> None:
    async def work(side: Side) -> None:
        side.kafka.refusals["out"] = refusal
        request = await side.complete(Failure(Code.OUT_OF_RANGE, "too long"), Failure(Code.OUT_OF_RANGE, "too long"))
        assert request.code is Code.INTERNAL
        assert side.counted("embed.replies.unwritten") == {reason: 1}
        await side.source.delivered()
        assert side.letter()["dlt-error-code"] == "INTERNAL"
        assert side.letter()["dlt-error-message"].startswith("the reply could not be written to out: ")

    check(work)


def test_a_refusal_that_cannot_be_written_is_counted_as_such() -> None:
    async def work(side: Side) -> None:
        side.kafka.refusals["out"] = kafka_errors.TopicAuthorizationFailedError("out")
        side.kafka.append(OutgoingRecord("in", 0, b"k", pb.EmbedRequest().SerializeToString(), []))
        receiving = asyncio.create_task(side.source.receive())
        await asyncio.sleep(1)
        assert side.counted("embed.requests") == {"INTERNAL": 1}
        assert side.counted("embed.replies.unwritten") == {"forbidden": 1}
        assert side.counted("embed.dead_letters") == {"INTERNAL": 1}
        receiving.cancel()

    check(work)


def test_a_dead_letter_that_cannot_be_written_holds_the_commit_and_tells_of_the_first_failure() -> None:
    async def work(side: Side) -> None:
        side.kafka.refusals["in-dlt"] = kafka_errors.TopicAuthorizationFailedError("in-dlt")
        began_s = asyncio.get_running_loop().time()
        await side.complete(POISON, POISON)
        await asyncio.sleep(60)
        assert side.kafka.committed[IN] == 0
        side.kafka.refusals.clear()
        await side.source.delivered()
        await asyncio.sleep(1)
        assert side.kafka.committed[IN] == 1
        first_s = datetime.fromisoformat(side.letter()["dlt-first-failure-time"]).timestamp()
        assert first_s - began_s < 1

    check(work)


def test_a_dead_letter_that_cannot_be_written_does_not_hold_what_was_completed_with_it() -> None:
    async def work(side: Side) -> None:
        side.kafka.refusals["in-dlt"] = kafka_errors.TopicAuthorizationFailedError("in-dlt")
        for _ in range(2):
            side.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, []))
        requests = await side.source.receive()
        assert len(requests) == 2
        requests[0].fail(Failure(Code.OUT_OF_RANGE, "too long"))
        requests[1].fail(POISON)
        await reply_all(side.source, requests)
        await asyncio.sleep(60)
        assert side.kafka.committed[IN] == 1
        side.kafka.refusals.clear()
        await side.source.delivered()
        await asyncio.sleep(1)
        assert side.kafka.committed[IN] == 2

    check(work)


def test_a_topic_whose_dead_letters_cannot_be_written_is_held_and_no_other() -> None:
    async def work(side: Side) -> None:
        side.kafka.refusals["in-dlt"] = kafka_errors.TopicAuthorizationFailedError("in-dlt")
        for _ in range(5000):
            side.kafka.append(OutgoingRecord("in", 0, b"k", b"\xff", []))
        receiving = asyncio.create_task(side.source.receive())
        await asyncio.sleep(10)
        assert side.consumer.paused() == {("in", 0)}
        assert len(side.written("out")) < 3000  # what was answered before the topic was held, and no more
        side.kafka.append(OutgoingRecord("other", 0, b"k", REQUEST, []))
        (request,) = await asyncio.wait_for(receiving, 10)
        assert request.request_id == "q"
        side.kafka.refusals.clear()
        await side.source.delivered()
        await asyncio.sleep(10)
        assert not side.consumer.paused()

    check(work)


def test_dead_letters_that_are_too_large_and_refused_ones_do_not_stop_each_other() -> None:
    async def work(side: Side) -> None:
        side.kafka.max_message_bytes = 1000
        for value in (b"\xff" * 900, b"\xff" * 2000, b"\xff" * 10):
            side.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
        side.kafka.refusals["in-dlt"] = kafka_errors.TopicAuthorizationFailedError("in-dlt")
        receiving = asyncio.create_task(side.source.receive())
        await asyncio.sleep(10)
        side.kafka.refusals.clear()
        await side.source.delivered()
        sizes = [len(record.value or b"") for record in side.written("in-dlt")]
        assert sorted(sizes) == [0, 10, 900]
        receiving.cancel()

    check(work)


def test_replies_wait_for_no_other_partition_of_their_topic() -> None:
    async def work(side: Side) -> None:
        side.kafka.create_topic("out", 2)
        side.kafka.leaderless.add(("out", 1))
        value = pb.EmbedRequest(inputs=[pb.Input(text="a")]).SerializeToString()
        for partition in (0, 1, 0):
            side.kafka.append(OutgoingRecord("in", 0, None, value, reply_to(partition)))
        requests = await side.source.receive()
        for request in requests:
            request.fail(Failure(Code.OUT_OF_RANGE, "too long"))
        released: list[Request] = []

        async def complete() -> None:
            async for delivered in side.source.reply(requests):
                released.extend(delivered)

        completing = asyncio.create_task(complete())
        await asyncio.sleep(10)
        assert released == [requests[0], requests[2]]
        assert side.kafka.committed[IN] == 1
        side.kafka.leaderless.clear()
        await completing
        assert released == [requests[0], requests[2], requests[1]]

    check(work)


def test_requests_that_nobody_waits_for_any_more_are_released_as_well() -> None:
    async def work(side: Side) -> None:
        for _ in range(2):
            side.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, []))
        requests = await side.source.receive()
        await side.producer.close(0)
        released = await reply_all(side.source, requests)
        assert released == list(requests)

    check(work)


def test_what_was_given_back_is_left_unanswered_to_its_new_owner() -> None:
    async def work(side: Side) -> None:
        for _ in range(2):
            side.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, []))
        requests = await side.source.receive()
        requests[0].fail(Failure(Code.OUT_OF_RANGE, "too long"))
        requests[1].fail(POISON)
        record_of(requests[0]).committed_offset.fence()
        released = await reply_all(side.source, requests)
        await side.source.delivered()
        assert not side.written("out")
        assert not side.written("in-dlt")
        assert released == list(requests)

    check(work)


def test_what_is_completed_after_the_producer_was_closed_is_left_to_the_next_reader() -> None:
    async def work(side: Side) -> None:
        await side.producer.close(0)
        await side.complete(POISON, POISON)
        side.kafka.append(OutgoingRecord("in", 0, b"k", b"\xff", []))
        receiving = asyncio.create_task(side.source.receive())
        await asyncio.sleep(1)
        side.consumer.stop_fetching()
        assert not await receiving
        assert side.kafka.committed[IN] == 0

    check(work)


def held(side: Side) -> set[str]:
    """The topics that are not read now."""
    return {topic for topic, _ in side.consumer.paused()}


def test_a_topic_is_held_for_every_model_that_its_records_asked_for_and_for_its_own_while_that_is_away() -> None:
    async def work(side: Side) -> None:
        side.kafka.append(OutgoingRecord("in", 0, b"k", NAMES_ANOTHER, []))
        (request,) = await side.source.receive()
        side.source.pause(lambda _: False, lambda model, _: model == "n")
        assert held(side) == set()
        side.source.accept(request)
        side.source.pause(lambda _: False, lambda model, _: model == "n")
        assert held(side) == {"in"}
        side.source.pause(lambda model: model == "n", lambda *_: False)
        assert held(side) == set()
        side.source.pause(lambda model: model == "m", lambda *_: False)
        assert held(side) == {"in", "other"}

    check(work)


LARGE = pb.EmbedRequest(request_id="large", inputs=[pb.Input(text="x" * 20_000)]).SerializeToString()


def test_records_with_large_values_are_received_apart() -> None:
    async def work(side: Side) -> None:
        for value in (LARGE, REQUEST, LARGE, b"\xff" * 20_000, REQUEST):
            side.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
        small = await side.source.receive()
        assert [request.request_id for request in small] == ["q", "q"]
        assert [request.request_id for request in await side.source.receive_large()] == ["large", "large"]
        await side.source.delivered()
        assert side.letter()["dlt-error-code"] == "DATA_LOSS"

    check(work)


def test_large_records_wait_as_long_as_their_topic_is_held_and_are_left_to_the_next_reader_at_the_end() -> None:
    async def work(side: Side) -> None:
        for topic, value in (("in", LARGE), ("in", REQUEST), ("other", LARGE)):
            side.kafka.append(OutgoingRecord(topic, 0, b"k", value, []))
        (request,) = await side.source.receive()
        side.source.accept(request)
        side.source.pause(lambda _: False, lambda *_: True)
        receiving = asyncio.create_task(side.source.receive_large())
        await asyncio.sleep(1)
        assert not receiving.done()
        side.source.pause(lambda _: False, lambda *_: False)
        assert {each.request_id for each in await receiving} == {"large"}
        side.kafka.append(OutgoingRecord("in", 0, b"k", LARGE, []))
        small = asyncio.create_task(side.source.receive())
        await asyncio.sleep(1)
        side.consumer.stop_fetching()
        assert not await small
        assert not await side.source.receive_large()

    check(work)


def test_only_topics_whose_large_records_wait_are_held_when_too_many_of_them_do() -> None:
    async def work(side: Side) -> None:
        value = pb.EmbedRequest(inputs=[pb.Input(text="x" * (1 << 20))]).SerializeToString()
        for _ in range(64):
            side.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
        receiving = asyncio.create_task(side.source.receive())
        await asyncio.sleep(1)
        assert held(side) == {"in"}
        side.kafka.append(OutgoingRecord("other", 0, b"k", REQUEST, []))
        assert [request.request_id for request in await receiving] == ["q"]
        await side.source.receive_large()
        assert held(side) == set()

    check(work)


def test_a_large_record_whose_partition_was_given_back_meanwhile_is_not_read() -> None:
    async def work(side: Side) -> None:
        value = pb.EmbedRequest(inputs=[pb.Input(text="x" * 20_000)]).SerializeToString()
        side.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
        side.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, []))
        (request,) = await side.source.receive()
        record_of(request).committed_offset.fence()
        side.consumer.stop_fetching()
        await side.source.receive()
        assert not await side.source.receive_large()

    check(work)


def test_nothing_expires_by_a_clock_that_is_off_the_records() -> None:
    async def work(side: Side) -> None:
        expired = [("ce_expirytime", b"1970-01-01T00:00:00Z")]  # records are written at 0 s, by their own clock
        side.wall_ahead_s = -asyncio.get_running_loop().time()
        deadlines: list[bool] = []
        for seconds in (1, 100):
            receiving = asyncio.create_task(side.source.receive())
            await asyncio.sleep(seconds)
            side.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, expired))
            deadlines += [request.deadline_s == inf for request in await receiving]
        assert deadlines == [False, True]

    check(work)
