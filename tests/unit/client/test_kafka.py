"""Requests through Kafka end within their time, whatever the broker does."""

import asyncio
from itertools import cycle
from typing import Any

import pytest
from tokenbatch_client import DeadlineExceeded
from tokenbatch_client.kafka import KafkaClient

from tests.support.virtual_time import in_virtual_time


class Away:
    """A producer whose broker takes records or not, and acknowledges none."""

    def __init__(self, *, takes: bool) -> None:
        self._takes = takes

    def create_batch(self) -> Any:
        return self

    def append(self, **_: object) -> bool:
        return True

    async def send_batch(self, *_: object, **__: object) -> asyncio.Future[None]:
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._takes:
            await acknowledged
        return acknowledged


@pytest.mark.parametrize("takes", [False, True])
@in_virtual_time
async def test_submit_ends_within_its_time_while_kafka_is_away(*, takes: bool) -> None:
    client = KafkaClient("kafka:9092")
    client._producer, client._partitions = Away(takes=takes), cycle([0])  # noqa: SLF001
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded, match="the requests are not written: Kafka does not answer"):
        _ = [row async for row in client.submit(["a"], timeout_s=3.0)]
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(3.0)
