"""The checker must catch what it is there for: builds that are broken on purpose."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.broken_code import (
    ACKNOWLEDGES_BEFORE_THE_BROKER,
    COMMITS_WHAT_WAS_ONLY_READ,
    DROPS_ITS_WORK_WHEN_REVOKED,
)
from tests.faults.row_stack import PATIENCE_S, RowStack
from tests.faults.rows import Figures
from tests.faults.topic_logs import end_offsets
from tests.support.kafka_client import committed

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]


@pytest.mark.row("checker: a build that commits early")
async def test_a_build_that_commits_early_is_caught(stack: RowStack, figures: Figures) -> None:
    await stack.server(SYNTHETIC__FIXED_S="0.05")
    culprit = await stack.aggregator(build=COMMITS_WHAT_WAS_ONLY_READ)
    async with stack.under_load(800):
        culprit.kill()
        await stack.aggregator()
        await stack.answers(100)
    verdict = figures.take(await stack.verdict())
    assert verdict.lost > 0
    assert verdict.early_commits > 0


@pytest.mark.row("checker: a build that drops its work when its partitions are revoked")
async def test_a_build_that_drops_on_revoke_is_caught(stack: RowStack, figures: Figures) -> None:
    await stack.server(SYNTHETIC__FIXED_S="0.05")
    await stack.aggregator(build=DROPS_ITS_WORK_WHEN_REVOKED)
    async with stack.under_load(800):
        await stack.aggregator()
        await stack.answers(100)
    verdict = figures.take(await stack.verdict())
    assert verdict.lost > 0
    assert verdict.early_commits > 0


@pytest.mark.short
@pytest.mark.row("checker: a build that acknowledges before the broker does")
async def test_a_build_that_acknowledges_before_the_broker_is_caught(stack: RowStack, figures: Figures) -> None:
    await stack.server()
    await stack.aggregator(build=ACKNOWLEDGES_BEFORE_THE_BROKER)
    async with stack.under_load():
        await stack.configure(stack.topics.replies, max_message_bytes="100")
        await until_unanswered(stack, 300)  # as the broker refuses replies, which a sound build would dead-letter
        await stack.configure(stack.topics.replies)
        await stack.answers(100)
    verdict = figures.take(await stack.verdict())
    assert verdict.lost > 0
    assert verdict.early_commits > 0


async def until_unanswered(stack: RowStack, count: int) -> None:
    """Wait until `count` committed records have no reply."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            done = sum((await committed(stack.kafka, stack.topics.requests)).values())
            if done - sum((await end_offsets(stack.kafka, stack.topics.replies)).values()) >= count:
                return
            await asyncio.sleep(0.2)
