"""What becomes of a record that cannot be answered, or not well, among fakes and in virtual time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime
from math import inf

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from aggregator.admission.ledger import Intake
from aggregator.admission.routing import route_all
from aggregator.errors import Code
from aggregator.request.request import Failure, Request
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.sources.kafka.decode import record_of
from aggregator.sources.kafka.outgoing import OutgoingRecord
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import reply_all
from tests.support.faked_pipeline import FakedPipeline, new_engine
from tests.support.kafka_source import KafkaSourceOverFakes
from tests.support.records import FakeRecord
from tests.support.virtual_time import in_virtual_time

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


class FakedSource(KafkaSourceOverFakes):
    """What a source wrote."""

    def __init__(self, intake: Intake | None = None) -> None:
        super().__init__(SETTINGS, "in", "other", "out", "in-dlt", intake=intake)

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


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (kafka_errors.TopicAuthorizationFailedError("out"), "forbidden"),
        (kafka_errors.UnknownTopicOrPartitionError("out"), "not_there"),
        (kafka_errors.MessageSizeTooLargeError(), "too_large"),
        (kafka_errors.PolicyViolationError(), "refused"),
    ],
)
@in_virtual_time
async def test_a_reply_that_cannot_be_written_is_what_became_of_its_request(refusal: Exception, reason: str) -> None:
    async with FakedSource().started() as faked:
        faked.kafka.refusals["out"] = refusal
        request = await faked.complete(Failure(Code.OUT_OF_RANGE, "too long"), Failure(Code.OUT_OF_RANGE, "too long"))
        assert request.code is Code.INTERNAL
        assert faked.counted("tokenbatch.replies.unwritten") == {reason: 1}
        await faked.source.delivered()
        assert faked.letter()["dlt-error-code"] == "INTERNAL"
        assert faked.letter()["dlt-error-message"].startswith("the reply could not be written to out: ")


@in_virtual_time
async def test_a_refusal_that_cannot_be_written_is_counted_as_such() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.refusals["out"] = kafka_errors.TopicAuthorizationFailedError("out")
        faked.kafka.append(OutgoingRecord("in", 0, b"k", pb.EmbedRequest().SerializeToString(), []))
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(1)
        assert faked.counted("tokenbatch.requests") == {"INTERNAL": 1}
        assert faked.counted("tokenbatch.replies.unwritten") == {"forbidden": 1}
        assert faked.counted("tokenbatch.dead_letters") == {"INTERNAL": 1}
        receiving.cancel()


@in_virtual_time
async def test_unwritable_dead_letters_hold_the_commit_and_tell_the_first_fault() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.refusals["in-dlt"] = kafka_errors.TopicAuthorizationFailedError("in-dlt")
        began_s = asyncio.get_running_loop().time()
        await faked.complete(POISON, POISON)
        await asyncio.sleep(60)
        assert faked.kafka.committed[IN] == 0
        faked.kafka.refusals.clear()
        await faked.source.delivered()
        await asyncio.sleep(1)
        assert faked.kafka.committed[IN] == 1
        first_s = datetime.fromisoformat(faked.letter()["dlt-first-failure-time"]).timestamp()
        assert first_s - began_s < 1


DENIED = kafka_errors.TopicAuthorizationFailedError()


@in_virtual_time
async def test_a_tombstone_reaches_the_dead_letter_topic_as_one() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.append(OutgoingRecord("in", 0, b"k", None, []))
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(1)
        await faked.source.delivered()
        (letter,) = faked.written("in-dlt")
        assert (letter.key, letter.value) == (b"k", None)
        receiving.cancel()


@in_virtual_time
async def test_a_reply_is_tried_again_before_a_delayed_dead_letter() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.refusals.update({"out": DENIED, "in-dlt": DENIED})
        await faked.complete(Failure(Code.OUT_OF_RANGE, "too long"), Failure(Code.OUT_OF_RANGE, "too long"))
        await asyncio.sleep(30)
        assert faked.kafka.committed[IN] == 0
        faked.kafka.refusals.clear()
        await faked.source.delivered()
        await asyncio.sleep(1)
        (reply,) = faked.written("out")
        answer = pb.EmbedResponse.FromString(reply.value or b"")
        assert (answer.request_id, answer.status.code, reply.key) == ("q", Code.OUT_OF_RANGE, b"k")
        assert faked.written("in-dlt") == []
        assert faked.kafka.committed[IN] == 1


@in_virtual_time
async def test_a_refusal_is_tried_again_before_a_delayed_dead_letter() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.refusals.update({"out": DENIED, "in-dlt": DENIED})
        faked.kafka.append(OutgoingRecord("in", 0, b"k", pb.EmbedRequest(request_id="r").SerializeToString(), []))
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(30)
        faked.kafka.refusals.clear()
        await faked.source.delivered()
        (reply,) = faked.written("out")
        assert pb.EmbedResponse.FromString(reply.value or b"").status.code == Code.INVALID_ARGUMENT
        assert faked.written("in-dlt") == []
        receiving.cancel()


@in_virtual_time
async def test_a_reply_that_stays_refused_delays_its_dead_letter_no_further() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.refusals.update({"out": DENIED, "in-dlt": DENIED})
        await faked.complete(Failure(Code.OUT_OF_RANGE, "too long"), Failure(Code.OUT_OF_RANGE, "too long"))
        await asyncio.sleep(30)
        del faked.kafka.refusals["in-dlt"]
        await faked.source.delivered()
        await asyncio.sleep(1)
        assert faked.letter()["dlt-error-message"].startswith("the reply could not be written to out: ")
        assert faked.written("out") == []
        assert faked.kafka.committed[IN] == 1


@in_virtual_time
async def test_an_unwritable_dead_letter_does_not_hold_what_completed_with_it() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.refusals["in-dlt"] = kafka_errors.TopicAuthorizationFailedError("in-dlt")
        for _ in range(2):
            faked.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, []))
        requests = await faked.source.receive()
        assert len(requests) == 2
        requests[0].fail(Failure(Code.OUT_OF_RANGE, "too long"))
        requests[1].fail(POISON)
        await reply_all(faked.source, requests)
        await asyncio.sleep(60)
        assert faked.kafka.committed[IN] == 1
        faked.kafka.refusals.clear()
        await faked.source.delivered()
        await asyncio.sleep(1)
        assert faked.kafka.committed[IN] == 2


@in_virtual_time
async def test_only_a_topic_whose_dead_letters_cannot_be_written_is_held() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.refusals["in-dlt"] = kafka_errors.TopicAuthorizationFailedError("in-dlt")
        for _ in range(5000):
            faked.kafka.append(OutgoingRecord("in", 0, b"k", b"\xff" * 5000, []))
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(10)
        assert faked.consumer.paused() == {("in", 0)}
        assert len(faked.written("out")) < 4000  # what was answered before the topic was held, and no more
        faked.kafka.append(OutgoingRecord("other", 0, b"k", REQUEST, []))
        (request,) = await asyncio.wait_for(receiving, 10)
        assert request.request_id == "q"
        faked.kafka.refusals.clear()
        await faked.source.delivered()
        await asyncio.sleep(10)
        assert not faked.consumer.paused()


@in_virtual_time
async def test_too_large_and_refused_dead_letters_do_not_stop_each_other() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.max_message_bytes = 1000
        for value in (b"\xff" * 900, b"\xff" * 2000, b"\xff" * 10):
            faked.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
        faked.kafka.refusals["in-dlt"] = kafka_errors.TopicAuthorizationFailedError("in-dlt")
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(10)
        faked.kafka.refusals.clear()
        await faked.source.delivered()
        sizes = [len(record.value or b"") for record in faked.written("in-dlt")]
        assert sorted(sizes) == [0, 10, 900]
        receiving.cancel()


@in_virtual_time
async def test_replies_wait_for_no_other_partition_of_their_topic() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.create_topic("out", 2)
        faked.kafka.leaderless.add(("out", 1))
        value = pb.EmbedRequest(inputs=[pb.Input(text="a")]).SerializeToString()
        for partition in (0, 1, 0):
            faked.kafka.append(OutgoingRecord("in", 0, None, value, reply_to(partition)))
        requests = await faked.source.receive()
        for request in requests:
            request.fail(Failure(Code.OUT_OF_RANGE, "too long"))
        released: list[Request] = []

        async def complete() -> None:
            async for delivered in faked.source.reply(requests):
                released.extend(delivered)

        completing = asyncio.create_task(complete())
        await asyncio.sleep(10)
        assert released == [requests[0], requests[2]]
        assert faked.kafka.committed[IN] == 1
        faked.kafka.leaderless.clear()
        await completing
        assert released == [requests[0], requests[2], requests[1]]


@in_virtual_time
async def test_what_was_given_back_is_left_unanswered_to_its_new_owner() -> None:
    async with FakedSource().started() as faked:
        for _ in range(2):
            faked.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, []))
        requests = await faked.source.receive()
        requests[0].fail(Failure(Code.OUT_OF_RANGE, "too long"))
        requests[1].fail(POISON)
        record_of(requests[0]).committed_offset.fence()
        released = await reply_all(faked.source, requests)
        await faked.source.delivered()
        assert not faked.written("out")
        assert not faked.written("in-dlt")
        assert released == list(requests)


def held(faked: FakedSource) -> set[str]:
    """The topics that are not read now."""
    return {topic for topic, _ in faked.consumer.paused()}


@in_virtual_time
async def test_a_topic_is_held_for_every_absent_model_asked_for_and_its_own() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.append(OutgoingRecord("in", 0, b"k", NAMES_ANOTHER, []))
        faked.source.pause(lambda _, _task: False, lambda model, _: model == "n")
        assert held(faked) == set()
        await faked.source.receive()
        faked.source.pause(lambda _, _task: False, lambda model, _: model == "n")
        assert held(faked) == {"in"}
        faked.source.pause(lambda model, _task: model == "n", lambda *_: False)
        assert held(faked) == set()
        faked.source.pause(lambda model, _task: model == "m", lambda *_: False)
        assert held(faked) == {"in", "other"}


LARGE = pb.EmbedRequest(request_id="large", inputs=[pb.Input(text="x" * 20_000)]).SerializeToString()


@in_virtual_time
async def test_records_with_large_values_are_received_apart() -> None:
    async with FakedSource().started() as faked:
        for value in (LARGE, REQUEST, LARGE, b"\xff" * 20_000, REQUEST):
            faked.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
        small = await faked.source.receive()
        assert [request.request_id for request in small] == ["q", "q"]
        assert [request.request_id for request in await faked.source.receive_large()] == ["large", "large"]
        await faked.source.delivered()
        assert faked.letter()["dlt-error-code"] == "DATA_LOSS"


@in_virtual_time
async def test_large_records_wait_on_a_held_topic_and_are_left_at_the_end() -> None:
    async with FakedSource().started() as faked:
        for topic, value in (("in", LARGE), ("in", REQUEST), ("other", LARGE)):
            faked.kafka.append(OutgoingRecord(topic, 0, b"k", value, []))
        await faked.source.receive()
        faked.source.pause(lambda _, _task: False, lambda *_: True)
        receiving = asyncio.create_task(faked.source.receive_large())
        await asyncio.sleep(1)
        assert not receiving.done()
        faked.source.pause(lambda _, _task: False, lambda *_: False)
        assert {each.request_id for each in await receiving} == {"large"}
        faked.kafka.append(OutgoingRecord("in", 0, b"k", LARGE, []))
        small = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(1)
        faked.consumer.stop_fetching()
        assert not await small
        assert not await faked.source.receive_large()


@in_virtual_time
async def test_only_topics_whose_large_records_wait_are_held_when_too_many_do() -> None:
    async with FakedSource(intake=Intake(100 << 20)).started() as faked:
        value = pb.EmbedRequest(inputs=[pb.Input(text="x" * (1 << 20))]).SerializeToString()
        for _ in range(64):
            faked.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
        receiving = asyncio.create_task(faked.source.receive())
        await asyncio.sleep(1)
        assert held(faked) == {"in"}
        faked.kafka.append(OutgoingRecord("other", 0, b"k", REQUEST, []))
        assert [request.request_id for request in await receiving] == ["q"]
        while held(faked):
            for request in await faked.source.receive_large():
                request.fail(Failure(Code.OUT_OF_RANGE, "too long"))
                await reply_all(faked.source, [request])


@in_virtual_time
async def test_only_a_record_from_the_future_never_expires() -> None:
    async with FakedSource().started() as faked:
        expired = [("ce_expirytime", b"1970-01-01T00:00:00Z")]  # the time at which the records are written, by theirs
        never: list[bool] = []
        for behind_s in (4.0, 6.0):
            faked.wall_ahead_s = -asyncio.get_running_loop().time() - behind_s
            faked.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, expired))
            never += [request.deadline_s == inf for request in await faked.source.receive()]
        assert never == [False, True]
        assert faked.counted("tokenbatch.consumer.ahead") == {"in": 1}


@in_virtual_time
async def test_a_clock_an_hour_ahead_expires_a_backlog_in_words() -> None:
    """Nothing in a record tells a wrong clock from an hour in the topic; the answer names how late, by which clock."""
    valid = [("ce_expirytime", b"1970-01-01T00:02:00Z")]  # for two minutes from when they are written, at 0 s
    async with FakedSource().started() as faked:
        for _ in range(250):
            faked.kafka.append(OutgoingRecord("in", 0, b"k", REQUEST, valid))
        faked.wall_ahead_s = 3600.0 - asyncio.get_running_loop().time()
        requests = await faked.source.receive()
        models = FakedPipeline(new_engine()).pipeline.models
        routed = route_all(requests, models, asyncio.get_running_loop().time())
        await reply_all(faked.source, routed.refused)
        answers = [pb.EmbedResponse.FromString(reply.value or b"").status for reply in faked.written("out")]
        late = re.compile(r"the deadline passed 3,48\d\.\d s before the request arrived, by the aggregator's clock")
        assert len(answers) == routed.expired == 250
        assert all(each.code == Code.DEADLINE_EXCEEDED and late.fullmatch(each.message) for each in answers)


@in_virtual_time
async def test_only_a_reply_too_large_for_its_topic_becomes_a_dead_letter() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.max_message_bytes = 2000
        value = pb.EmbedRequest(request_id="q", inputs=[pb.Input(text="a")]).SerializeToString()
        for key in (b"large", b"small"):
            faked.kafka.append(OutgoingRecord("in", 0, key, value, []))
        large, small = await faked.source.receive()
        large.fail(Failure(Code.OUT_OF_RANGE, "x" * 3000))
        small.fail(Failure(Code.OUT_OF_RANGE, "too long"))
        await reply_all(faked.source, [large, small])
        await faked.source.delivered()
        await asyncio.sleep(1)
        assert [reply.key for reply in faked.written("out")] == [b"small"]
        assert (large.code, small.code) == (Code.INTERNAL, Code.OUT_OF_RANGE)
        assert faked.letter()["dlt-error-message"] == (
            "the reply could not be written to out: MessageSizeTooLargeError of 6059 bytes;"
            " raise that topic's max.message.bytes, or ask for less at once"
        )
        assert faked.kafka.committed[IN] == 2


@in_virtual_time
async def test_a_topic_whose_urgent_records_may_wait_behind_bulk_is_named() -> None:
    bulk = pb.EmbedRequest(inputs=[pb.Input(text="1")], priority=pb.PRIORITY_BACKGROUND).SerializeToString()
    async with FakedSource().started() as faked:
        for value, outranked in ((bulk, True), (REQUEST, False)):
            faked.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
            await faked.source.receive()
            faked.source.pause(lambda *_: False, lambda *_: False)
            assert not any(each.outranked for each in faked.source.backlogs())
            faked.source.pause(lambda *_: False, lambda *_: True)
            await asyncio.sleep(1)
            assert [each.topic for each in faked.source.backlogs() if each.outranked] == ["in"] * outranked
            faked.source.pause(lambda *_: False, lambda *_: False)
