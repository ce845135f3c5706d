"""The intake's task ends when it is told to, whatever breaks in the same moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aggregator.adapters import kafka_membership
from aggregator.adapters.kafka_consumer import KafkaDeliveries
from tests.fakes import clock
from tests.fakes.commit_world import SETTINGS, TPS
from tests.fakes.group import FakeGroup, FakeMember, Log


@pytest.mark.parametrize("turns", range(8))
def test_a_cancellation_in_the_moment_in_which_the_membership_breaks_is_heard(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        group = FakeGroup({tp: Log() for tp in TPS})
        broken = asyncio.Event()

        class Breaking(FakeMember):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(group, *arguments)

            @property
            def broken(self) -> bool:  # type: ignore[override]
                broken.set()
                return True

        monkeypatch.setattr(kafka_membership, "GroupMember", Breaking)
        deliveries = KafkaDeliveries(SETTINGS, lambda _: None)
        running = asyncio.create_task(deliveries.run())
        await broken.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running], timeout=60.0)
        assert running.done()

    clock.run(main())
