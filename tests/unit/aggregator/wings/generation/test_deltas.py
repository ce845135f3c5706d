"""Texts are written as they grow, in order and beside their replies, where their topic asks for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import errors as kafka_errors
from pydantic import ValidationError

from aggregator.request.request import Request
from aggregator.settings.aggregator import KafkaSettings, TopicSettings
from aggregator.slow_lane import SLOW_LANE
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.wings.generation.generation import generation_of
from protos.generation.v1 import generation_pb2 as pb
from tests.support.fake_source import reply_all
from tests.support.fake_tokenizer import Letters
from tests.support.kafka_source import KafkaSourceOverFakes
from tests.support.virtual_time import in_virtual_time

TOPIC = TopicSettings(name="in", task="generate", reply_topic="out", delta_topic="deltas")
SETTINGS = KafkaSettings(topics=(TOPIC,), group_id="g")
EVERY_S, A_WHILE_S = 0.05, 0.2


class FakedSource(KafkaSourceOverFakes):
    """A source whose texts the test lets grow."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, "in", "out", "deltas", "in-dlt")

    async def ask(self, **fields: Any) -> Request:
        """A request that came by Kafka, routed, with its prompt counted."""
        value = pb.GenerateRequest(prompt="p", request_id="q", **fields).SerializeToString()
        self.kafka.append(OutgoingRecord("in", 0, b"k", value, []))
        (request,) = await self.source.receive()
        generation_of(request).begin("r", b"\1\0\0\0", Letters())
        return request

    def grow(self, request: Request, letters: str) -> None:
        generation_of(request).extend([ord(letter) for letter in letters], ())
        request.source.progressed(request)

    async def end(self, request: Request) -> None:
        generation_of(request).end(pb.FINISH_REASON_LENGTH)
        request.complete_input(0, generation_of(request))
        await reply_all(self.source, [request])

    def written(self, topic: str) -> list[pb.GenerateResponse]:
        return [pb.GenerateResponse.FromString(each.value or b"") for each in self.kafka.records(topic)]


@in_virtual_time
async def test_what_a_text_gains_in_a_while_is_one_record_and_the_reply_has_all() -> None:
    async with FakedSource().started() as faked:
        request = await faked.ask()
        faked.grow(request, "Th")
        faked.grow(request, "e ")
        await asyncio.sleep(A_WHILE_S)
        faked.grow(request, "sea")
        await asyncio.sleep(A_WHILE_S)
        faked.grow(request, ".")
        await faked.end(request)
        deltas = faked.written("deltas")
        assert [(each.index, each.text) for each in deltas] == [(0, "The "), (4, "sea"), (7, ".")]
        assert [each.finish_reason != pb.FINISH_REASON_UNSPECIFIED for each in deltas] == [False, False, True]
        (reply,) = faked.written("out")
        assert (reply.index, reply.text, reply.usage.completion_tokens) == (0, "The sea.", 8)
        assert {each.reply_id for each in deltas} == {reply.reply_id}
        assert [each.key for each in faked.kafka.records("deltas")] == [b"k"] * 3


@in_virtual_time
async def test_who_asks_for_the_whole_text_gets_its_reply_alone() -> None:
    async with FakedSource().started() as faked:
        request = await faked.ask(final_only=True)
        faked.grow(request, "The sea.")
        await asyncio.sleep(A_WHILE_S)
        await faked.end(request)
        assert faked.written("deltas") == []
        assert [each.text for each in faked.written("out")] == ["The sea."]


@in_virtual_time
async def test_a_delta_of_many_logarithms_comes_before_the_last() -> None:
    async with FakedSource().started() as faked:
        request = await faked.ask(sampling=pb.Sampling(logprobs=20))
        row = pb.TokenLogprobs(alternatives=[pb.TokenLogprob()] * 20)
        generation_of(request).extend([ord(letter) for letter in "abcdefg" * 10], [row] * 70)
        held = threading.Event()
        SLOW_LANE.submit(held.wait, 20.0)  # it has other work
        request.source.progressed(request)
        await asyncio.sleep(EVERY_S)
        await asyncio.sleep(0)  # its delta is begun
        generation_of(request).extend([ord("!")], [row])
        ending = asyncio.create_task(faked.end(request))
        for _ in range(5):
            await asyncio.sleep(0)
        assert faked.written("deltas") == []
        held.set()
        await ending
        assert [(each.index, each.text, len(each.logprobs)) for each in faked.written("deltas")] == [
            (0, "abcdefg" * 10, 70),
            (70, "!", 1),
        ]
        assert [len(each.logprobs) for each in faked.written("out")] == [71]


@in_virtual_time
async def test_parts_that_kafka_refuses_are_counted_and_the_reply_is_written() -> None:
    async with FakedSource().started() as faked:
        faked.kafka.refusals["deltas"] = kafka_errors.TopicAuthorizationFailedError("deltas")
        request = await faked.ask()
        faked.grow(request, "The ")
        await asyncio.sleep(A_WHILE_S)
        faked.grow(request, "sea.")
        await faked.end(request)
        assert [each.text for each in faked.written("out")] == ["The sea."]
        (metric,) = (
            each for each in faked.buffer.collect().metrics if each.name == "tokenbatch.generate.deltas.unwritten"
        )
        points: Sequence[Any] = metric.data.data_points
        assert [point.value for point in points] == [2]


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [
        ({"name": "in", "delta_topic": "deltas"}, "delta_topic needs task generate"),
        ({"name": "in", "task": "generate", "delta_topic": "in"}, "a separate topic"),
        ({"name": "in", "task": "generate", "delta_topic": "generate.replies.v1"}, "a separate topic"),
    ],
)
def test_a_delta_topic_that_cannot_be_is_refused(topic: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        KafkaSettings.model_validate({"topics": [topic]})
