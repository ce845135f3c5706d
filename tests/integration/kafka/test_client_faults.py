"""The client library's own tasks may die, and its numbering go wrong: intake and output mend themselves."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka import errors as kafka_errors

from aggregator.adapters import kafka_writer
from aggregator.adapters.kafka_producer import KafkaProducer
from aggregator.ports import OutgoingRecord
from tests.fakes.kafka_clusters import RealCluster, produce, reading, records_of, settle, until, until_committed

pytestmark = pytest.mark.kafka


def too_large(topic: str) -> OutgoingRecord:
    return OutgoingRecord(topic, 0, b"k", b"x" * 3_000_000, [])


async def test_intake_joins_anew_when_a_task_of_the_client_dies(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    await produce(shared, records_of(topic, 5))
    async with reading(shared, shared.settings(topic)) as intake:
        settle((await intake.take(5))[:3])
        await until_committed(shared, topic, {0: 3})
        deliveries: Any = intake.deliveries
        deliveries._membership._member._coordinator._coordination_task.cancel()  # noqa: SLF001 - to break it
        await until(lambda: len(intake.fenced) == 2)
        assert [lease.offset for lease in await intake.take(2)] == [3, 4]
        settle(intake.leases)
        await until_committed(shared, topic, {0: 5})


async def test_output_connects_anew_when_the_client_s_sender_dies(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    producer = KafkaProducer(shared.settings())
    await producer.start()
    assert not any(await producer.send(records_of(topic, 5)))
    inner: Any = producer
    sender = inner._writer._producer._sender  # noqa: SLF001 - to break it
    with patch.object(sender, "_maybe_wait_for_pid", side_effect=kafka_errors.KafkaError("broken")):
        assert not any(await producer.send(records_of(topic, 5, start=5)))
    assert inner._writer._producer._sender is not sender  # noqa: SLF001
    await producer.close(2)
    assert {record.value for record in await shared.read(topic)} == {b"%d" % number for number in range(10)}


async def test_what_was_written_is_heard_of_while_other_records_wait(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    producer = KafkaProducer(shared.settings())
    await producer.start()
    astray = OutgoingRecord("not-there", None, b"k", b"the brokers are asked for some seconds", [])
    heard: list[int] = []
    sending = asyncio.create_task(
        producer.send([*records_of(topic, 5), astray], lambda positions, _: heard.extend(positions))
    )
    await until(lambda: bool(heard))
    assert heard == [0, 1, 2, 3, 4]
    assert not sending.done()
    assert isinstance((await sending)[5], kafka_errors.UnknownTopicOrPartitionError)
    assert heard == [0, 1, 2, 3, 4, 5]
    await producer.close(2)


async def test_a_refused_record_does_not_end_its_partition(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    producer = KafkaProducer(shared.settings())
    await producer.start()
    for start in (0, 5):
        words = await producer.send([too_large(topic), *records_of(topic, 5, partition=0, start=start)])
        assert isinstance(words[0], kafka_errors.MessageSizeTooLargeError)
        assert not any(words[1:])
    await producer.close(2)
    assert [record.value for record in await shared.read(topic)] == [b"%d" % number for number in range(10)]


async def test_only_the_record_that_is_too_large_is_refused_however_large_its_batch(shared: RealCluster) -> None:
    topic = await shared.create_topic(max_message_bytes="100000")
    values = [secrets.token_bytes(10_000) for _ in range(40)]  # each fits, a batch of them does not
    values.insert(17, secrets.token_bytes(110_000))
    producer = KafkaProducer(shared.settings())
    await producer.start()
    words = await producer.send([OutgoingRecord(topic, 0, b"k", value, []) for value in values])
    await producer.close(2)
    assert [number for number, word in enumerate(words) if word is not None] == [17]
    assert isinstance(words[17], kafka_errors.MessageSizeTooLargeError)
    del values[17]
    assert [record.value for record in await shared.read(topic)] == values


async def test_without_a_new_identity_it_would(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    producer = KafkaProducer(shared.settings())
    await producer.start()
    assert not any(await producer.send(records_of(topic, 1, partition=0)))
    with patch.object(kafka_writer, "_renew_identity"):
        assert any(await producer.send([too_large(topic)]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send(records_of(topic, 1, partition=0)), 2)
    await producer.close(1)
