"""What the pipeline and senders may rely on in a source behind which a broker keeps requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from aggregator.errors import Code
from aggregator.request.request import Failure, Request, Source
from aggregator.scheduler.work_item import Priority
from protos.embedding.v1 import embedding_pb2 as pb
from tests.contract.aggregator.wings.redis.broker import redis
from tests.support.brokers import Broker, KafkaAsBroker
from tests.support.fake_source import reply_all, take
from tests.support.kafka_clusters import FakeCluster, RealCluster

TOO_LONG = Failure(Code.OUT_OF_RANGE, "too long")
POISON = Failure(Code.INTERNAL, "it broke")


@asynccontextmanager
async def fake_kafka(_: pytest.FixtureRequest, __: Path) -> AsyncGenerator[Broker]:
    """Kafka in memory."""
    async with prepared(KafkaAsBroker(FakeCluster())) as broker:
        yield broker


@asynccontextmanager
async def kafka(request: pytest.FixtureRequest, _: Path) -> AsyncGenerator[Broker]:
    """The Kafka of all tests."""
    async with prepared(KafkaAsBroker(RealCluster(request.getfixturevalue("kafka").bootstrap))) as broker:
        yield broker


@asynccontextmanager
async def prepared(broker: KafkaAsBroker) -> AsyncGenerator[Broker]:
    """Its topics are there."""
    await broker.prepare()
    yield broker
    await broker.close()


@pytest_asyncio.fixture(
    params=[
        pytest.param(fake_kafka, id="fake kafka"),
        pytest.param(kafka, id="kafka", marks=pytest.mark.kafka),
        pytest.param(redis, id="redis", marks=pytest.mark.redis),
    ]
)
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Broker]:
    """Each broker in turn."""
    async with request.param(request, tmp_path) as opened:
        yield opened


def message(request_id: str, *texts: str, **fields: object) -> bytes:
    """A request of these texts."""
    inputs = [pb.Input(text=text) for text in texts or ("a",)]
    return pb.EmbedRequest(request_id=request_id, inputs=inputs, **fields).SerializeToString()  # type: ignore[arg-type]


async def settled(broker: Broker, count: int) -> list[bytes]:
    """That many replies, once they are there."""
    async with asyncio.timeout(60):
        while len(found := await broker.replies()) < count:  # noqa: ASYNC110 - a broker calls nobody
            await asyncio.sleep(0.02)
    return found


async def answers(broker: Broker, count: int) -> list[pb.EmbedResponse]:
    """The same in protobuf."""
    return [pb.EmbedResponse.FromString(value) for value in await settled(broker, count)]


async def finished(broker: Broker) -> None:
    """Nothing would be read again."""
    async with asyncio.timeout(60):
        while await broker.unfinished():  # noqa: ASYNC110 - a broker calls nobody
            await asyncio.sleep(0.02)


async def complete(source: Source, requests: Sequence[Request], failure: Failure = TOO_LONG) -> None:
    """Reply to requests of which no input could be computed."""
    for request in requests:
        request.fail(failure)
    await reply_all(source, requests)


async def test_requests_come_as_they_were_sent_and_finish_once_answered(broker: Broker) -> None:
    for each in range(20):
        await broker.send(message(f"q{each}", f"text {each}", "another"))
    async with broker.opened() as source:
        requests = await take(source, 20)
        assert [(request.request_id, list(request.inputs)) for request in requests] == [
            (f"q{each}", [f"text {each}", "another"]) for each in range(20)
        ]
        assert all(request.source is source and not source.refusable for request in requests)
        assert await broker.unfinished() == 20
        assert not await broker.replies()
        await complete(source, requests)
        replies = await answers(broker, 20)
        assert {reply.request_id for reply in replies} == {f"q{each}" for each in range(20)}
        assert len({reply.reply_id for reply in replies}) == 20
        await finished(broker)


async def test_a_successor_reads_what_has_no_reply_again_under_the_same_ids(broker: Broker) -> None:
    for _ in range(4):
        await broker.send(message(""))
    async with broker.opened() as source:
        first = await take(source, 4)
        await complete(source, first[:2])
        before = await answers(broker, 2)
    async with broker.opened() as successor:
        again = await take(successor, 2)
        assert {request.request_id for request in again} >= {request.request_id for request in first[2:]}
        await complete(successor, again)
        after = await answers(broker, 4)
        await finished(broker)
    assert len({request.request_id for request in first}) == 4
    by_id = {reply.request_id: reply.reply_id for reply in before}
    assert all(by_id.get(reply.request_id, reply.reply_id) == reply.reply_id for reply in after)


async def test_equal_requests_are_answered_each(broker: Broker) -> None:
    for _ in range(2):
        await broker.send(message("the same"))
    async with broker.opened() as source:
        await complete(source, await take(source, 2))
        replies = await answers(broker, 2)
        assert [reply.request_id for reply in replies] == ["the same"] * 2
        assert len({reply.reply_id for reply in replies}) == 2


@pytest.mark.parametrize(
    ("value", "content_type", "code", "kept"),
    [
        (b"\xff\xff", b"", Code.DATA_LOSS, True),
        (b"{", b"application/json", Code.DATA_LOSS, True),
        (b"\xff", b"text/plain", Code.DATA_LOSS, True),
        (b"x", b"image/png", Code.DATA_LOSS, True),
        (pb.EmbedRequest().SerializeToString(), b"", Code.INVALID_ARGUMENT, False),
        (message("bad", "x", priority=7), b"", Code.INVALID_ARGUMENT, False),
    ],
)
async def test_bad_input_is_told_what_is_wrong_and_harms_no_neighbour(
    broker: Broker, value: bytes, content_type: bytes, code: Code, *, kept: bool
) -> None:
    await broker.send(message("before"))
    await broker.send(value, **({"content_type": content_type} if content_type else {}))
    await broker.send(message("after"))
    async with broker.opened() as source:
        requests = await take(source, 2)
        assert [request.request_id for request in requests] == ["before", "after"]
        await complete(source, requests)
        values = [pb.EmbedResponse.FromString(each) for each in await settled(broker, 3) if not each.startswith(b"{")]
        documents = [json.loads(each) for each in await broker.replies() if each.startswith(b"{")]
        codes = [reply.status.code for reply in values if reply.request_id not in {"before", "after"}]
        assert codes + [each["status"]["code"] for each in documents] == [code]
        await finished(broker)
        letters = await broker.letters()
        assert [fields["dlt-error-code"] for _, fields in letters] == ([code.name.encode()] if kept else [])


async def test_a_request_that_names_a_forbidden_place_is_kept_unanswered(broker: Broker) -> None:
    await broker.send(message("misled"), reply_to=b"elsewhere")
    await broker.send(message("good"))
    async with broker.opened() as source:
        await complete(source, await take(source, 1))
        await finished(broker)
        [(value, fields)] = await broker.letters()
        assert value == message("misled")
        assert fields["dlt-error-code"] == b"PERMISSION_DENIED"
        assert [reply.request_id for reply in await answers(broker, 1)] == ["good"]


async def test_what_failed_by_itself_is_answered_and_kept(broker: Broker) -> None:
    await broker.send(message("poison"))
    async with broker.opened() as source:
        await complete(source, await take(source, 1), POISON)
        [reply] = await answers(broker, 1)
        assert reply.status.code == Code.INTERNAL
        await finished(broker)
        [(value, fields)] = await broker.letters()
        assert (value, fields["dlt-error-message"]) == (message("poison"), b"it broke")


async def test_a_request_in_json_gets_its_reply_in_json(broker: Broker) -> None:
    await broker.send(b'{"requestId": "j", "inputs": [{"text": "x"}]}', content_type=b"application/json")
    async with broker.opened() as source:
        await complete(source, await take(source, 1))
        [reply] = await settled(broker, 1)
        assert json.loads(reply)["requestId"] == "j"


async def test_nothing_is_received_while_a_model_is_full(broker: Broker) -> None:
    async with broker.opened(priority="background") as source:
        source.pause(lambda _, __: False, lambda _, priority: priority is Priority.BACKGROUND)
        await broker.send(message("later"))
        receiving = asyncio.create_task(take(source, 1))
        await asyncio.sleep(0.5)
        assert not receiving.done()
        source.pause(lambda _, __: False, lambda _, __: False)
        [request] = await receiving
        assert request.priority is Priority.BACKGROUND


async def test_a_topic_s_own_fields_fill_in_what_a_request_leaves_out(broker: Broker) -> None:
    await broker.send(message("a", tenant="t", priority=pb.PRIORITY_INTERACTIVE))
    async with broker.opened(model="n", priority="background", tenant="own") as source:
        [request] = await take(source, 1)
        assert (request.model, request.priority, request.tenant) == ("n", Priority.INTERACTIVE, "own")
