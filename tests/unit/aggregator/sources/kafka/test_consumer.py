"""The intake ends when it is told to, whatever breaks in the same moment."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import KafkaError
from typing_extensions import override

from tests.support.fake_kafka import FakeKafka, FakeMember
from tests.support.simulated_group import SETTINGS
from tests.support.virtual_time import in_virtual_time


@pytest.mark.parametrize("turns", range(8), ids=lambda turns: f"{turns} turns after it")
@in_virtual_time
async def test_the_intake_ends_when_it_is_cancelled_while_a_membership_breaks(
    turns: int,
) -> None:
    broke = asyncio.Event()

    class Breaking(FakeMember):
        @override
        def partitions_for_topic(self, topic: str) -> set[int]:
            del topic
            broke.set()
            raise KafkaError("it broke")

    consumer = FakeKafka("in").consumer(SETTINGS, member=Breaking)
    running = asyncio.create_task(consumer.run())
    await broke.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=60.0)
    ended = running.done()
    await consumer.close(0.0)
    assert ended
