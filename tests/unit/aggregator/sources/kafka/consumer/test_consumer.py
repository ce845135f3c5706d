"""The intake ends when it is told to, whatever breaks in the same moment."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes import clock
from tests.fakes.group_simulation import SETTINGS
from tests.fakes.kafka import FakeKafka, FakeMember


@pytest.mark.parametrize("turns", range(8), ids=lambda turns: f"{turns} turns after it")
def test_the_intake_ends_when_it_is_cancelled_while_a_membership_breaks(
    turns: int,
) -> None:
    async def main() -> None:
        broke = asyncio.Event()

        class Breaking(FakeMember):
            @property
            def failure(self) -> Exception | None:  # type: ignore[override]
                broke.set()
                return OSError("it broke")

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

    clock.run(main())
