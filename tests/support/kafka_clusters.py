"""One interface over the in-memory Kafka and a real one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import GroupCoordinatorNotAvailableError

from aggregator.observability.metrics import Metrics
from aggregator.settings.aggregator import ClientSettings, KafkaSettings, TopicSettings
from aggregator.sources.kafka.consumer import KafkaConsumer
from aggregator.sources.kafka.offsets import InFlightRecord, Record
from aggregator.sources.kafka.outgoing import OutgoingRecord
from aggregator.sources.kafka.producer import KafkaProducer
from aggregator.wings.undecodable.batches import read_by_hand
from k8s.pod.metrics_buffer import MetricsBuffer
from tests.support.fake_kafka import FakeKafka, FakeProducer
from tests.support.kafka_client import connected_admin, make_topics
from tests.support.patience import patient

OnFenced = Callable[[Sequence[InFlightRecord]], None]


class Cluster(Protocol):
    """What a test may ask of a Kafka. Each cluster object is one consumer group."""

    def settings(self, *topics: str, **changes: Any) -> KafkaSettings: ...
    def consumer(self, settings: KafkaSettings, on_fenced: OnFenced, counts: Metrics) -> KafkaConsumer: ...
    def producer(self, settings: KafkaSettings) -> KafkaProducer: ...
    async def create_topic(self, partitions: int = 1, **configuration: str) -> str: ...
    async def read(self, topic: str) -> Sequence[Record]: ...
    async def committed(self, topic: str) -> Mapping[int, int]: ...
    async def expire(self, topic: str, partition: int, start: int) -> None: ...


QUICK = {"commit_interval_s": 0.05, "drain_timeout_s": 3.0}
"""The session's time-out stays: a busy machine must not put a member out."""


def _grouped(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a cluster with those of its clients in their group."""
    client = {name: value for name, value in changes.items() if hasattr(ClientSettings(), name)}
    rest = {name: value for name, value in changes.items() if name not in client}
    return {**rest, "client": ClientSettings().model_copy(update={**QUICK, **client})}


class FakeCluster:
    """FakeKafka as a Cluster."""

    def __init__(self) -> None:
        self.kafka = FakeKafka()

    def settings(self, *topics: str, **changes: Any) -> KafkaSettings:
        named = tuple(TopicSettings(name=topic) for topic in topics) or (TopicSettings(name="unused"),)
        return KafkaSettings.model_validate({"topics": named, **_grouped(changes)})

    def consumer(self, settings: KafkaSettings, on_fenced: OnFenced, counts: Metrics) -> KafkaConsumer:
        return self.kafka.consumer(settings, on_fenced, counts=counts)

    def producer(self, settings: KafkaSettings) -> KafkaProducer:
        del settings
        return FakeProducer(self.kafka)

    async def create_topic(self, partitions: int = 1, **configuration: str) -> str:
        name = f"topic-{len(self.kafka.logs)}"
        self.kafka.create_topic(name, partitions)
        if "max_message_bytes" in configuration:
            self.kafka.max_message_bytes = int(configuration["max_message_bytes"])
        return name

    async def read(self, topic: str) -> Sequence[Record]:
        return [record for tp, log in sorted(self.kafka.logs.items()) if tp.topic == topic for record in log.records]

    async def committed(self, topic: str) -> Mapping[int, int]:
        return {partition: offset for (name, partition), offset in self.kafka.committed.items() if name == topic}

    async def expire(self, topic: str, partition: int, start: int) -> None:
        self.kafka.logs[TopicPartition(topic, partition)].start = start


class RealCluster:
    """Apache Kafka as a Cluster; topics and group have names of their own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = secrets.token_hex(4)
        self._topics = 0

    def settings(self, *topics: str, **changes: Any) -> KafkaSettings:
        named = tuple(TopicSettings(name=topic) for topic in topics) or (TopicSettings(name="unused"),)
        own = {"bootstrap_servers": self.bootstrap, "group_id": f"group-{self.name}", "topics": named}
        return KafkaSettings.model_validate({**own, **_grouped(changes)})

    def consumer(self, settings: KafkaSettings, on_fenced: OnFenced, counts: Metrics) -> KafkaConsumer:
        return KafkaConsumer(
            settings,
            on_fenced,
            counts,
            read_by_hand=read_by_hand,
        )

    def producer(self, settings: KafkaSettings) -> KafkaProducer:
        return KafkaProducer(settings)

    async def create_topic(self, partitions: int = 1, **configuration: str) -> str:
        self._topics += 1
        return await self.create_named_topic(f"{self.name}-{self._topics}", partitions, **configuration)

    async def create_named_topic(self, name: str, partitions: int = 1, **configuration: str) -> str:
        configs = {key.replace("_", "."): value for key, value in configuration.items()}
        await make_topics(self.bootstrap, name, partitions=partitions, configs=configs)
        return name

    async def read(self, topic: str) -> Sequence[Record]:
        consumer: Any = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            await consumer._client._wait_on_metadata(topic)  # noqa: SLF001 - it asks only for topics it subscribed to
            tps = [TopicPartition(topic, partition) for partition in sorted(consumer.partitions_for_topic(topic))]
            consumer.assign(tps)
            ends = await consumer.end_offsets(tps)
            records: list[Record] = []
            while any([await consumer.position(tp) < ends[tp] for tp in tps]):
                found = await consumer.getmany(timeout_ms=200)
                records.extend(record for part in found.values() for record in part)
            return sorted(records, key=lambda record: (record.partition, record.offset))
        finally:
            await consumer.stop()

    async def committed(self, topic: str) -> Mapping[int, int]:
        async with self.admin() as admin:
            offsets = await admin.list_consumer_group_offsets(f"group-{self.name}")
        return {tp.partition: offset.offset for tp, offset in offsets.items() if tp.topic == topic}

    async def expire(self, topic: str, partition: int, start: int) -> None:
        async with self.admin() as admin:
            await admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(start)})

    def admin(self) -> AbstractAsyncContextManager[Any]:
        return connected_admin(self.bootstrap)


def records_of(topic: str, count: int, *, partition: int | None = None, start: int = 0) -> list[OutgoingRecord]:
    numbers = range(start, start + count)
    return [OutgoingRecord(topic, partition, b"key-%d" % each, b"%d" % each, [("n", b"%d" % each)]) for each in numbers]


async def send_all(producer: KafkaProducer, records: Sequence[OutgoingRecord]) -> list[Exception | None]:
    """The delivery result of each record, once all are there; each comes once."""
    results: dict[int, Exception | None] = {}
    async for delivered in producer.send(records):
        assert not results.keys() & dict(delivered).keys()
        results |= delivered
    return [results[position] for position in range(len(records))]


async def produce(cluster: Cluster, records: Sequence[OutgoingRecord]) -> None:
    """Write records, all of which must be acknowledged."""
    producer = cluster.producer(cluster.settings())
    await producer.start()
    try:
        assert not any(await send_all(producer, records))
    finally:
        await producer.close(5)


class Reading:
    """A running intake and what became of it."""

    def __init__(self, cluster: Cluster, settings: KafkaSettings) -> None:
        self.fenced: list[InFlightRecord] = []
        self.in_flight_records: list[InFlightRecord] = []
        self.counts = Metrics(MetricsBuffer())
        self.consumer = cluster.consumer(settings, self.fenced.extend, self.counts)

    async def take(self, count: int, timeout_s: float = 60.0) -> list[InFlightRecord]:
        """Exactly `count` more records; unfinished."""
        taken: list[InFlightRecord] = []
        async with asyncio.timeout(patient(timeout_s)):
            while len(taken) < count:
                taken.extend(await self.consumer.fetch())
        assert len(taken) == count, f"{len(taken)} records came instead of {count}"
        self.in_flight_records.extend(taken)
        return taken

    async def nothing(self, for_s: float = 0.3) -> None:
        try:
            async with asyncio.timeout(for_s):
                in_flight_records = await self.consumer.fetch()
        except TimeoutError:
            return
        raise AssertionError(f"{len(in_flight_records)} records came instead of none")

    @asynccontextmanager
    async def going_on(self) -> AsyncGenerator[None]:
        """Read on meanwhile, where no record is to come: however long what is awaited takes."""
        fetching = asyncio.create_task(self.consumer.fetch())
        yield
        assert not fetching.done(), fetching
        fetching.cancel()
        await asyncio.wait([fetching])


def complete(in_flight_records: Sequence[InFlightRecord]) -> None:
    for in_flight in in_flight_records:
        in_flight.committed_offset.complete(in_flight)


@asynccontextmanager
async def reading(cluster: Cluster, settings: KafkaSettings) -> AsyncGenerator[Reading, None]:
    """Run an intake, and close it at the end."""
    one = Reading(cluster, settings)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(one.consumer.run())
        try:
            yield one
        finally:
            await one.consumer.close(5)


async def until_committed(cluster: Cluster, topic: str, offsets: Mapping[int, int], timeout_s: float = 60.0) -> None:
    """Wait for the group to have committed exactly these."""
    seen: Mapping[int, int] = {}
    try:
        async with asyncio.timeout(patient(timeout_s)):
            while seen != offsets:
                await asyncio.sleep(0.02)
                with suppress(GroupCoordinatorNotAvailableError):  # a broker that has just started has none yet
                    seen = await cluster.committed(topic)
    except TimeoutError:
        raise AssertionError(f"committed is {seen}, not {offsets}") from None
