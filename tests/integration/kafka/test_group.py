"""Members come and go: a member that was put out does no harm, nothing is passed over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Generator
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from aiokafka.admin import NewPartitions

from aggregator.sources.kafka.offsets import InFlightRecord
from tests.support.kafka_clusters import Reading, RealCluster, complete, produce, reading, records_of, until_committed
from tests.support.until import until

pytestmark = pytest.mark.kafka

PARTITIONS = 4


def coordinator_of(consumer: Any) -> Any:
    return consumer._member.client._coordinator  # noqa: SLF001 - to break it


@contextlib.contextmanager
def without_heartbeats(coordinator: Any) -> Generator[None, None, None]:
    """Let a member look dead to the group, as a process that is stopped does, and not come back meanwhile."""
    with (
        patch.object(coordinator, "_do_heartbeat", AsyncMock(return_value=True)),
        patch.object(coordinator, "request_rejoin") as asked,
    ):
        yield
    if asked.called:
        coordinator.request_rejoin()


async def work(member: Reading, seen: dict[tuple[int, int], int]) -> None:
    """Complete whatever comes, a little later and in the wrong order."""
    while in_flight_records := list(await member.consumer.fetch()):
        await asyncio.sleep(0.02)
        for in_flight in reversed(in_flight_records):
            place = (in_flight.partition, in_flight.offset)
            seen[place] = seen.get(place, 0) + 1
            complete([in_flight])


async def test_a_member_that_was_put_out_commits_nothing_and_comes_back(shared: RealCluster) -> None:
    topic = await shared.create_topic(partitions=2)
    await produce(shared, [each for at in range(2) for each in records_of(topic, 10, partition=at)])
    async with reading(shared, shared.settings(topic, session_timeout_s=6.0)) as zombie:
        old = await zombie.take(20)
        with without_heartbeats(coordinator_of(zombie.consumer)):
            async with reading(shared, shared.settings(topic)) as heir:
                complete(await heir.take(20))  # the same records: they were never completed
                await until_committed(shared, topic, {0: 10, 1: 10})
                complete([in_flight for in_flight in old if in_flight.offset < 5])
                await until(lambda: zombie.counts.commit_failures.total > 0)
                assert await shared.committed(topic) == {0: 10, 1: 10}
        complete(old)
        await produce(shared, [each for at in range(2) for each in records_of(topic, 5, partition=at)])
        worker = asyncio.create_task(work(zombie, {}))
        await until_committed(shared, topic, {0: 15, 1: 15})
        zombie.consumer.stop_fetching()
        await worker


@contextlib.asynccontextmanager
async def working(cluster: RealCluster, topic: str, seen: dict[tuple[int, int], int]) -> AsyncGenerator[Reading, None]:
    """A member that works until it is stopped, and drains then."""
    async with reading(cluster, cluster.settings(topic, max_poll_records=20)) as member:
        worker = asyncio.create_task(work(member, seen))
        try:
            yield member
        finally:
            member.consumer.stop_fetching()
            await worker


@pytest.mark.slow
async def test_a_storm_of_rebalances_loses_nothing_and_takes_nothing_back(shared: RealCluster) -> None:
    topic = await shared.create_topic(partitions=PARTITIONS)
    seen: dict[tuple[int, int], int] = {}
    history: list[dict[int, int]] = []
    calm = asyncio.Event()

    async def keep_producing() -> None:
        while not calm.is_set():
            await produce(shared, [each for at in range(PARTITIONS) for each in records_of(topic, 20, partition=at)])
            await asyncio.sleep(0.05)

    async def watch_commits() -> None:
        while not calm.is_set():
            history.append(dict(await shared.committed(topic)))
            await asyncio.sleep(0.1)

    async with working(shared, topic, seen) as lasting:
        await until_committed(shared, topic, dict.fromkeys(range(PARTITIONS), 0))
        tasks = [asyncio.create_task(keep_producing()), asyncio.create_task(watch_commits())]
        for _ in range(4):
            async with working(shared, topic, seen):
                await asyncio.sleep(1.5)
            await asyncio.sleep(0.5)
        calm.set()
        await asyncio.gather(*tasks)
        written = dict.fromkeys(range(PARTITIONS), 0)
        for record in await shared.read(topic):
            written[record.partition] += 1
        await until_committed(shared, topic, written, timeout_s=60.0)
        assert lasting.counts.rebalances.total >= 4
    assert set(seen) == {(at, offset) for at, end in written.items() for offset in range(end)}
    for earlier, later in itertools.pairwise(history):
        assert all(later.get(at, 0) >= offset for at, offset in earlier.items())
    duplicates = sum(times - 1 for times in seen.values())
    assert duplicates == 0, f"{duplicates} of {len(seen)} came twice though every member drained"


@contextlib.contextmanager
def held_once_read(consumer: Any, topic: str) -> Generator[None]:
    """Hold a topic at the very moment when records of it were read, and not handed out yet."""
    membership = consumer._member  # noqa: SLF001 - nothing else knows that moment
    really_read = membership.read

    async def read(*args: Any) -> Any:
        found = await really_read(*args)
        if any(partition.fetched for partition in membership.partitions.values()):
            consumer.pause(frozenset({topic}))
        return found

    with patch.object(membership, "read", read):
        yield


async def test_what_was_being_read_when_its_topic_was_held_waits_too(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    async with reading(shared, shared.settings(topic)) as intake:
        await until_committed(shared, topic, {0: 0})
        with held_once_read(intake.consumer, topic):
            waiting = asyncio.create_task(intake.take(5))
            await produce(shared, records_of(topic, 5))
            await until(lambda: bool(intake.consumer.paused()))
            await asyncio.sleep(0.3)
            assert not waiting.done()
        intake.consumer.pause(frozenset())
        assert [in_flight.offset for in_flight in await waiting] == [0, 1, 2, 3, 4]


async def test_what_was_held_before_a_rebalance_comes_once_to_who_has_it_now(
    shared: RealCluster,
) -> None:
    topic = await shared.create_topic(partitions=2)
    settings = shared.settings(topic)
    async with reading(shared, settings) as first:
        await until_committed(shared, topic, {0: 0, 1: 0})
        with held_once_read(first.consumer, topic):
            waiting = asyncio.create_task(first.take(5))
            await produce(shared, [each for at in range(2) for each in records_of(topic, 5, partition=at)])
            await until(lambda: bool(first.consumer.paused()))
        async with reading(shared, settings) as second:
            others = await second.take(5)
            first.consumer.pause(frozenset())
            in_flight_records = [*await waiting, *others]
            assert {(each.partition, each.offset) for each in in_flight_records} == {
                (at, offset) for at in range(2) for offset in range(5)
            }
            complete(in_flight_records)
            await until_committed(shared, topic, {0: 5, 1: 5})


async def test_partitions_that_are_added_are_read_from_their_start(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    async with reading(shared, shared.settings(topic)) as intake:
        await until_committed(shared, topic, {0: 0})
        async with shared.admin() as admin:
            await admin.create_partitions({topic: NewPartitions(3)})
        await produce(shared, [each for at in range(3) for each in records_of(topic, 5, partition=at)])
        await coordinator_of(intake.consumer)._client.force_metadata_update()  # or wait for 30 s  # noqa: SLF001
        async with asyncio.timeout(60):
            while {(in_flight.partition, in_flight.offset) for in_flight in intake.in_flight_records} < {
                (at, offset) for at in range(3) for offset in range(5)
            }:
                in_flight_records: list[InFlightRecord] = list(await intake.consumer.fetch())
                complete(in_flight_records)
                intake.in_flight_records.extend(in_flight_records)
        await until_committed(shared, topic, {0: 5, 1: 5, 2: 5})
