"""A record batch that cannot be read harms neither its neighbours nor other partitions, and is never lost silently."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from loadtest.stack.kafka import KafkaBroker
from tests.integration.kafka.test_transactions import CHECKED_FROM, CRC_AT
from tests.support.kafka_clusters import RealCluster, complete, produce, reading, records_of, until_committed

pytestmark = pytest.mark.kafka


def spoil_batch(log: Path, number: int) -> None:
    """Change a bit in the middle of one batch of a partition's log."""
    data = bytearray(log.read_bytes())
    at = 0
    for _ in range(number):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    length = int.from_bytes(data[at + 8 : at + 12], "big")
    data[at + 12 + length // 2] ^= 0x40
    log.write_bytes(data)


async def topic_with_a_corrupt_batch(cluster: RealCluster, broker: KafkaBroker) -> str:
    """A topic of two partitions; in the first, the second of three batches of ten is corrupt."""
    topic = await cluster.create_topic(partitions=2)
    for start in (0, 10, 20):
        await produce(cluster, records_of(topic, 10, partition=0, start=start))
    await produce(cluster, records_of(topic, 10, partition=1))
    broker.stop()
    spoil_batch(broker.folder / "data" / f"{topic}-0" / f"{0:020}.log", 1)
    broker.start()
    return topic


async def test_a_corrupt_batch_becomes_one_dead_letter_with_its_bytes(
    fragile: RealCluster, own_broker: KafkaBroker
) -> None:
    topic = await topic_with_a_corrupt_batch(fragile, own_broker)
    log = (own_broker.folder / "data" / f"{topic}-0" / f"{0:020}.log").read_bytes()
    async with reading(fragile, fragile.settings(topic)) as intake:
        in_flight_records = await intake.take(31)
        first = sorted(each.offset for each in in_flight_records if each.partition == 0)
        assert first == [*range(11), *range(20, 30)]
        [unreadable] = [each for each in in_flight_records if each.unreadable]
        assert (unreadable.partition, unreadable.offset) == (0, 10)
        assert unreadable.value
        assert unreadable.value[17:] in log  # without what a broker changes: the offset and the leader's epoch
        assert "offsets 10 to 19 cannot be decoded" in unreadable.unreadable
        assert (intake.counts.corrupt_batches.total, intake.counts.records_lost.total) == (1, 10)
        complete([each for each in in_flight_records if each is not unreadable])
        await until_committed(fragile, topic, {0: 10, 1: 10})
        complete([unreadable])
        await until_committed(fragile, topic, {0: 30, 1: 10})


async def write_batch(bootstrap: str, topic: str, batch: bytes) -> None:
    """Write a batch as it is, which no client library would."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    await client.set_topics([topic])
    request = ProduceRequest(None, -1, 5000, [(topic, [(0, batch)])])
    response = await client.send(client.get_random_node(), request)
    await client.close()
    assert response.topics[0][1][0][1] == 0


async def test_a_header_name_that_is_not_utf8_costs_its_own_record_alone(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 100_000)
    for offset in range(3):
        builder.append(offset, None, b"k", b"%d" % offset, [("NAME" if offset == 1 else "fine", b"x")])
    batch = bytearray(bytes(builder.build()).replace(b"NAME", b"N\xffME"))
    batch[CRC_AT:CHECKED_FROM] = struct.pack(">I", calc_crc32c(bytes(batch[CHECKED_FROM:])))
    await produce(shared, records_of(topic, 2))
    await write_batch(shared.bootstrap, topic, bytes(batch))
    await produce(shared, records_of(topic, 2, start=5))
    async with reading(shared, shared.settings(topic)) as intake:
        in_flight_records = await intake.take(7)
        complete(in_flight_records)
        assert [in_flight.value for in_flight in in_flight_records] == [b"0", b"1", b"0", b"1", b"2", b"5", b"6"]
        assert [in_flight.unreadable for in_flight in in_flight_records if in_flight.unreadable] == [
            in_flight_records[3].unreadable
        ]
        assert in_flight_records[3].unreadable == "a header name is not UTF-8"
        assert [name for name, _ in in_flight_records[3].headers] == ["N\ufffdME"]
        assert (intake.counts.corrupt_batches.total, intake.counts.records_lost.total) == (0, 0)
        await until_committed(shared, topic, {0: 7})
