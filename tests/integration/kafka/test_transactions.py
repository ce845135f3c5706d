"""Real transactions: what was committed is handed out, what was aborted never, what hangs is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

from tests.support.kafka_clusters import Reading, RealCluster, complete, produce, reading, records_of, until_committed

pytestmark = pytest.mark.kafka

CRC_AT = 17
CHECKED_FROM = 21


@asynccontextmanager
async def transactions(cluster: RealCluster, name: str, timeout_ms: int = 60_000) -> AsyncGenerator[Any]:
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        transactional_id=f"{cluster.name}-{name}",
        transaction_timeout_ms=timeout_ms,
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def write(producer: Any, topic: str, *values: str, header: str = "n") -> None:
    """Write records to the topic's first partition, in the transaction that is open, and see them acknowledged."""
    batch = producer.create_batch()
    for value in values:
        batch.append(timestamp=None, key=b"k", value=value.encode(), headers=[(header, value.encode())])
    build = batch._build  # noqa: SLF001 - no client library would send such a name
    with patch.object(batch, "_build", lambda: with_odd_names(build())):
        await (await producer.send_batch(batch, topic, partition=0))


def with_odd_names(batch: bytes) -> bytes:
    """Make each name NAME, in a batch of records, one that is not UTF-8."""
    odd = bytearray(batch.replace(b"NAME", b"N\xffME"))
    odd[CRC_AT:CHECKED_FROM] = calc_crc32c(bytes(odd[CHECKED_FROM:])).to_bytes(4, "big")
    return bytes(odd)


async def written(cluster: RealCluster, topic: str, *, header: str = "n") -> list[str]:
    """Three transactions of each of two producers between records of none; the values that may be read, in order."""
    async with transactions(cluster, "one") as one, transactions(cluster, "two") as two:
        await produce(cluster, records_of(topic, 2))
        await one.begin_transaction()
        await two.begin_transaction()
        await write(one, topic, "one-aborted")
        await write(two, topic, "two-committed", "two-committed-too", header=header)
        await write(one, topic, "one-aborted-too", header=header)
        await two.commit_transaction()
        await one.abort_transaction()
        await one.begin_transaction()
        await write(one, topic, "one-committed", header=header)
        await two.begin_transaction()
        await write(two, topic, "two-aborted", header=header)
        await two.abort_transaction()
        await one.commit_transaction()
        await produce(cluster, records_of(topic, 2, start=2))
    return ["0", "1", "two-committed", "two-committed-too", "one-committed", "2", "3"]


def values(intake: Reading) -> Sequence[str]:
    return [(in_flight.value or b"").decode() for in_flight in intake.in_flight_records]


@pytest.mark.parametrize("header", ["n", "NAME"], ids=["usual", "not UTF-8"])
async def test_what_was_committed_is_handed_out_and_what_was_aborted_is_not(shared: RealCluster, header: str) -> None:
    topic = await shared.create_topic()
    wanted = await written(shared, topic, header=header)
    async with reading(shared, shared.settings(topic)) as intake:
        complete(await intake.take(len(wanted)))
        assert values(intake) == wanted
        async with intake.going_on():
            await until_committed(shared, topic, {0: 14})  # seven that may be read, three aborted, four markers
        assert intake.counts.corrupt_batches.total == 0
        await produce(shared, records_of(topic, 1, start=4))
        complete(await intake.take(1))
        await until_committed(shared, topic, {0: 15})
    if header != "n":
        assert [bool(in_flight.unreadable) for in_flight in intake.in_flight_records].count(True) == 3


async def test_what_follows_a_hanging_transaction_waits_till_the_broker_ends_it(
    shared: RealCluster,
) -> None:
    topic, other = await shared.create_topic(), await shared.create_topic()
    async with transactions(shared, "hangs", timeout_ms=1000) as hangs:
        await hangs.begin_transaction()
        await write(hangs, topic, "never ended")
        await produce(shared, [*records_of(topic, 3), *records_of(other, 3)])
        async with reading(shared, shared.settings(topic, other)) as intake:
            complete(await intake.take(3))
            assert {in_flight.topic for in_flight in intake.in_flight_records} == {other}
            await intake.nothing(0.5)
            assert intake.consumer.healthy
            async with asyncio.timeout(60):  # brokers look for such transactions every 10 s
                complete(await intake.take(3, timeout_s=60))
            assert values(intake)[3:] == ["0", "1", "2"]
            await until_committed(shared, topic, {0: 5})


@pytest.mark.parametrize("header", ["n", "NAME"], ids=["usual", "not UTF-8"])
async def test_an_open_transaction_is_not_handed_out_before_it_is_committed(shared: RealCluster, header: str) -> None:
    topic = await shared.create_topic()
    async with transactions(shared, "slow") as slow, reading(shared, shared.settings(topic)) as intake:
        await slow.begin_transaction()
        await write(slow, topic, "first", header=header)
        await intake.nothing(0.5)
        await write(slow, topic, "second", header=header)
        await slow.commit_transaction()
        complete(await intake.take(2))
        async with intake.going_on():  # over the marker
            await until_committed(shared, topic, {0: 3})
        assert values(intake) == ["first", "second"]
