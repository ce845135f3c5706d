"""The intake ends when it is told to, whatever breaks in the same moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aggregator.sources.kafka.consumer import membership as kafka_membership
from aggregator.sources.kafka.consumer.consumer import KafkaDeliveries
from tests.fakes import clock
from tests.fakes.commit_world import SETTINGS, TPS
from tests.fakes.group import FakeGroup, FakeMember, Log


@pytest.mark.parametrize("turns", range(8), ids=lambda turns: f"{turns} turns after it")
def test_the_intake_ends_when_it_is_cancelled_while_a_membership_breaks(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        group = FakeGroup({tp: Log() for tp in TPS})
        broke = asyncio.Event()

        class Breaking(FakeMember):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(group, *arguments)

            @property
            def failure(self) -> Exception | None:  # type: ignore[override]
                broke.set()
                return OSError("it broke")

        monkeypatch.setattr(kafka_membership, "GroupMember", Breaking)
        deliveries = KafkaDeliveries(SETTINGS, lambda _: None)
        running = asyncio.create_task(deliveries.run())
        await broke.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running], timeout=60.0)
        ended = running.done()
        await deliveries.close(0.0)
        assert ended

    clock.run(main())
