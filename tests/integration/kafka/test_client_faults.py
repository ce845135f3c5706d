"""The client library's own tasks may die, and its numbering go wrong: intake and output mend themselves."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.group import HeartbeatRequest

from aggregator.sources.kafka.aiokafka_internals import InvalidRecordError
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer, Writer, new_client
from tests.support.kafka_clusters import RealCluster, complete, produce, reading, records_of, send_all, until_committed
from tests.support.until import until

pytestmark = pytest.mark.kafka


def consumer_of(consumer: Any) -> Any:
    return consumer._member.client  # noqa: SLF001 - to break it


def coordination(consumer: Any) -> None:
    consumer._coordinator._coordination_task.cancel()  # noqa: SLF001


def fetching(consumer: Any) -> None:
    consumer._fetcher._fetch_task.cancel()  # noqa: SLF001


def coordination_beside_a_failed_fetch(consumer: Any) -> None:
    """As while brokers are away: `stop` cancels the fetch, which waits for its next try, and raises CancelledError."""
    consumer._fetcher._pending_tasks.add(asyncio.create_task(asyncio.sleep(60)))  # noqa: SLF001
    coordination(consumer)


def metadata(consumer: Any) -> None:
    consumer._client._metadata_update = AsyncMock(side_effect=ValueError("an answer that nobody expects"))  # noqa: SLF001
    consumer._client.force_metadata_update()  # noqa: SLF001


def heartbeats(consumer: Any) -> None:
    answer_to(consumer, HeartbeatRequest, SimpleNamespace(error_code=29))


def offsets(consumer: Any) -> None:
    """What aiokafka keeps of them for itself."""
    answer_to(consumer, OffsetFetchRequest, SimpleNamespace(topics=[("t", [(0, -1, "", 30)])]))
    subscription = consumer._subscription.subscription  # noqa: SLF001
    for tp in subscription.assignment.tps:
        subscription.assignment.state_value(tp).fetch_committed()


def answer_to(consumer: Any, kind: type[Any], answer: Any) -> None:
    """Let the coordinator answer one kind of request with this, until the client is given up."""
    send = consumer._coordinator._send_req  # noqa: SLF001

    async def sent(request: Any) -> Any:
        return answer if isinstance(request, kind) else await send(request)

    consumer._coordinator._send_req = sent  # noqa: SLF001


@pytest.mark.parametrize("breaks", [coordination, coordination_beside_a_failed_fetch, fetching, heartbeats, offsets])
async def test_intake_joins_anew_when_a_task_of_the_client_dies(
    shared: RealCluster, breaks: Callable[[Any], None]
) -> None:
    topic = await shared.create_topic()
    await produce(shared, records_of(topic, 5))
    async with reading(shared, shared.settings(topic, session_timeout_s=6.0)) as intake:
        complete((await intake.take(5))[:3])
        await until_committed(shared, topic, {0: 3})
        taking = asyncio.create_task(intake.take(2, timeout_s=60.0))  # what is not asked for is not missed
        breaks(consumer_of(intake.consumer))
        await until(lambda: not intake.consumer.healthy)
        await until(lambda: len(intake.fenced) == 2)
        assert [in_flight.offset for in_flight in await taking] == [3, 4]
        complete(intake.in_flight_records)
        await until_committed(shared, topic, {0: 5})
        assert intake.consumer.healthy


@pytest.mark.parametrize("code", [-1, 30, 82, 999])
async def test_whatever_a_heartbeat_is_answered_intake_goes_on(shared: RealCluster, code: int) -> None:
    topic = await shared.create_topic()
    async with reading(shared, shared.settings(topic)) as intake:
        await until(lambda: intake.consumer.healthy)
        answer_to(consumer_of(intake.consumer), HeartbeatRequest, SimpleNamespace(error_code=code))
        await until(lambda: not intake.consumer.healthy)
        await produce(shared, records_of(topic, 5))
        complete(await intake.take(5))
        await until_committed(shared, topic, {0: 5})
        assert intake.consumer.healthy


async def test_intake_is_unready_once_commits_go_unanswered_for_a_sessions_time(
    shared: RealCluster,
) -> None:
    topic = await shared.create_topic()
    async with reading(shared, shared.settings(topic, session_timeout_s=6.0)) as intake:
        await until(lambda: intake.consumer.healthy)
        with patch.object(consumer_of(intake.consumer), "commit", AsyncMock(side_effect=TimeoutError)):
            await until(lambda: not intake.consumer.healthy)
        await until(lambda: intake.consumer.healthy)
        assert intake.counts.commit_failures.total > 0


def sender(producer: Any) -> None:
    failing = patch.object(producer._sender, "_maybe_wait_for_pid", side_effect=kafka_errors.KafkaError("broken"))  # noqa: SLF001
    failing.start()


def sender_without_a_word(producer: Any) -> None:
    producer._sender.sender_task.cancel()  # noqa: SLF001


@pytest.mark.parametrize("breaks", [sender, sender_without_a_word, metadata])
async def test_output_connects_anew_when_a_task_of_the_client_dies(
    shared: RealCluster, breaks: Callable[[Any], None]
) -> None:
    topic, another = await shared.create_topic(), await shared.create_topic()
    producer = KafkaProducer(shared.settings())
    await producer.start()
    assert not any(await send_all(producer, records_of(topic, 5)))
    inner: Any = producer
    broken = inner._writer._client  # noqa: SLF001 - to break it
    sending = asyncio.create_task(send_all(producer, records_of(topic, 5, start=5)))
    await asyncio.sleep(0)
    breaks(SimpleNamespace(_client=broken.client, _sender=broken._sender))  # noqa: SLF001
    async with asyncio.timeout(60):
        assert not any(await sending)
        assert not any(await send_all(producer, records_of(another, 1)))
    assert inner._writer._client is not broken  # noqa: SLF001
    await producer.close(2)
    assert {record.value for record in await shared.read(topic)} == {b"%d" % number for number in range(10)}


async def test_a_batch_whose_acknowledgement_was_lost_is_written_again(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    producer = KafkaProducer(shared.settings())
    await producer.start()
    inner: Any = producer
    client = inner._writer._client.client  # noqa: SLF001 - to break it
    really_send, lost = client.send, list[Any]()

    async def send(node: Any, request: Any, **more: Any) -> Any:
        answer = await really_send(node, request, **more)
        if "Produce" in type(request).__name__ and not lost:
            lost.append(answer)
            raise kafka_errors.KafkaConnectionError("broken off after the broker had written")
        return answer

    with patch.object(client, "send", send):
        assert not any(await send_all(producer, records_of(topic, 5, partition=0)))
    await producer.close(2)
    assert lost
    assert [record.value for record in await shared.read(topic)] == [b"%d" % number for number in range(5)] * 2


async def test_only_the_too_large_record_is_refused_however_large_its_batch(shared: RealCluster) -> None:
    topic = await shared.create_topic(max_message_bytes="100000")
    values = [secrets.token_bytes(10_000) for _ in range(40)]  # each fits, a batch of them does not
    values.insert(17, secrets.token_bytes(110_000))
    producer = KafkaProducer(shared.settings())
    await producer.start()
    words = await send_all(producer, [OutgoingRecord(topic, 0, b"k", value, []) for value in values])
    await producer.close(2)
    assert [number for number, word in enumerate(words) if word is not None] == [17]
    assert isinstance(words[17], kafka_errors.MessageSizeTooLargeError)
    del values[17]
    assert [record.value for record in await shared.read(topic)] == values


async def test_a_compacted_topic_takes_records_without_a_key_under_a_made_one(shared: RealCluster) -> None:
    topic = await shared.create_topic(cleanup_policy="compact")
    producer = KafkaProducer(shared.settings())
    await producer.start()
    keyless = [OutgoingRecord(topic, 0, None, b"%d" % number, [], identity=b"r%d" % number) for number in range(20)]
    nameless = OutgoingRecord(topic, 0, None, b"nameless", [])
    words = await send_all(producer, [*keyless, nameless])
    await producer.close(2)
    assert [type(word) for word in words] == [*[type(None)] * 20, InvalidRecordError]
    assert [record.key for record in await shared.read(topic)] == [record.identity for record in keyless]


async def test_a_batch_may_carry_the_time_of_its_requests(shared: RealCluster) -> None:
    """As it does where a broker refuses that of the clock."""
    topic = await shared.create_topic(message_timestamp_type="CreateTime")
    writer = Writer(shared.settings(), new_client)
    await writer.connect()
    records = [OutgoingRecord(topic, 0, b"k", b"x", [], timestamp_ms=1_700_000_000_000 + number) for number in range(3)]
    while (error := await writer.write(TopicPartition(topic, 0), records, own_clock=False)) is not None:
        assert isinstance(error, AssertionError), error  # the partitions are not known yet
        await writer.partitions(topic)
    await writer.close()
    assert [record.timestamp for record in await shared.read(topic)] == [record.timestamp_ms for record in records]
