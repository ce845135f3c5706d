"""The checker must catch what it is there for: three of the builds that are broken on purpose (tests/broken)."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.rows import Figures
from tests.faults.scene import Scene
from tests.faults.topic_logs import end_offsets
from tests.integration.aggregator.desk import committed

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.short, pytest.mark.timeout(200)]


@pytest.mark.row("checker: a build that commits early")
async def test_a_build_that_commits_early_is_caught(scene: Scene, figures: Figures) -> None:
    await scene.server(SYNTHETIC__FIXED_S="0.05")
    culprit = await scene.aggregator(build="commits-what-was-only-read")
    async with scene.under_load(800):
        culprit.kill()
        await scene.aggregator()
        await scene.answers(100)
    verdict = figures.take(await scene.verdict())
    assert verdict.lost > 0
    assert verdict.early_commits > 0


@pytest.mark.row("checker: a build that drops its work when its partitions are revoked")
async def test_a_build_that_drops_on_revoke_is_caught(scene: Scene, figures: Figures) -> None:
    await scene.server(SYNTHETIC__FIXED_S="0.05")
    await scene.aggregator(build="drops-its-work-when-revoked")
    async with scene.under_load(800):
        await scene.aggregator()
        await scene.answers(100)
    verdict = figures.take(await scene.verdict())
    assert verdict.lost > 0
    assert verdict.early_commits > 0


@pytest.mark.row("checker: a build that acknowledges before the broker does")
async def test_a_build_that_acknowledges_before_the_broker_is_caught(scene: Scene, figures: Figures) -> None:
    await scene.server()
    await scene.aggregator(build="acknowledges-before-the-broker")
    async with scene.under_load():
        await scene.configure(scene.topics.replies, max_message_bytes="100")
        await until_unanswered(scene, 300)  # as the broker refuses replies, which a sound build would dead-letter
        await scene.configure(scene.topics.replies)
        await scene.answers(100)
    verdict = figures.take(await scene.verdict())
    assert verdict.lost > 0
    assert verdict.early_commits > 0


async def until_unanswered(scene: Scene, count: int) -> None:
    """Wait for so many records to be committed that have no reply."""
    async with asyncio.timeout(60):
        while True:
            done = sum((await committed(scene.kafka, scene.topics.requests)).values())
            if done - sum((await end_offsets(scene.kafka, scene.topics.replies)).values()) >= count:
                return
            await asyncio.sleep(0.2)
