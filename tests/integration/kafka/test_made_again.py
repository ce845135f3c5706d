"""A topic that is deleted and made again under its readers: the others are read meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aggregator.sources.kafka.answered import EXPIRED, Answer
from tests.support.kafka_client import delete_topic
from tests.support.kafka_clusters import Reading, RealCluster, complete, produce, reading, records_of, until_committed
from tests.support.until import until

pytestmark = pytest.mark.kafka


def metadata_requests(intake: Reading) -> list[Any]:
    consumer: Any = intake.consumer
    client = consumer._member.client._client  # noqa: SLF001 - to listen
    asked: list[Any] = []
    ask = client._metadata_update  # noqa: SLF001

    async def update(*arguments: Any) -> Any:
        asked.append(arguments)
        return await ask(*arguments)

    client._metadata_update = update  # noqa: SLF001
    return asked


async def test_a_topic_that_is_away_holds_up_no_other_and_is_read_once_back(shared: RealCluster) -> None:
    topic, other = await shared.create_topic(), await shared.create_topic()
    await produce(shared, [*records_of(topic, 5), *records_of(other, 5)])
    async with reading(shared, shared.settings(topic, other)) as intake:
        complete(await intake.take(10))
        await delete_topic(shared.bootstrap, topic)
        asked = metadata_requests(intake)
        for start in (5, 10, 15):
            await produce(shared, records_of(other, 5, start=start))
            complete(await intake.take(5, timeout_s=10.0))
        await until(lambda: not intake.consumer.healthy)
        seen, now = 0, len(asked)
        async with asyncio.timeout(60):
            while now - seen > 10:  # some 400 a second while aiokafka has the partition
                await asyncio.sleep(1.0)
                seen, now = now, len(asked)
        await shared.create_named_topic(topic)
        await produce(shared, records_of(topic, 8))
        complete(await intake.take(8, timeout_s=60.0))
        await until_committed(shared, topic, {0: 8})


async def test_a_topic_made_again_and_shorter_is_read_from_its_start(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    await produce(shared, records_of(topic, 10))
    async with reading(shared, shared.settings(topic)) as intake:
        before = await intake.take(10)
        complete(before[:8])
        await delete_topic(shared.bootstrap, topic)
        await shared.create_named_topic(topic)
        await produce(shared, records_of(topic, 4, start=20))
        after = await intake.take(4, timeout_s=60.0)
        complete(after)
        ids = {each.committed_offset.topic_id for each in (*before, *after)}
        assert len(ids) == 2
        assert all(len(bytes.fromhex(each)) == 16 for each in ids)
        assert [each.offset for each in intake.fenced] == [8, 9]
        await until_committed(shared, topic, {0: 4})


async def test_a_commit_tells_its_successor_what_may_have_been_answered(shared: RealCluster) -> None:
    topic = await shared.create_topic()
    await produce(shared, records_of(topic, 6))
    async with reading(shared, shared.settings(topic)) as intake:
        for each, answer in zip((await intake.take(6))[1:4], (Answer("m", "old"), EXPIRED, None), strict=True):
            each.committed_offset.complete(each, answer)
    async with reading(shared, shared.settings(topic)) as successor:
        again = await successor.take(6)
        before = again[0].committed_offset.answered_before
        assert [each.replay for each in again] == [True] * 4 + [False] * 2
        assert [before.expired(offset) for offset in range(4)] == [False, False, True, False]
        assert before.model_revision(1, "m") == "old"
        assert again[0].committed_offset.topic_id == intake.in_flight_records[0].committed_offset.topic_id
        complete(again)
        await until_committed(shared, topic, {0: 6})
