"""How the producer's client asks brokers."""

from __future__ import annotations

import asyncio

import pytest

from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources.kafka.producer import new_client
from tests.support.virtual_time import run


def test_a_client_keeps_its_backoff_between_two_requests_for_metadata() -> None:
    async def ask(times: int) -> float:
        producer, loop = new_client(KafkaSettings()), asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(times):
            assert not await producer.client._metadata_update(producer.client.cluster, ())  # noqa: SLF001 - no broker
        took_s = loop.time() - began_s
        await producer.stop()
        return took_s

    assert run(ask(1)) == 0
    assert run(ask(6)) == pytest.approx(1.0)
