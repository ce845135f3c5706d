"""From a server per task to servers of both tasks, under load of both: nothing is lost, no call fails."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import Release
from tests.cluster.traffic import CHANNEL
from tests.cluster.values import synthetic
from tests.faults.load_of_two_tasks import Load
from tests.support.kafka_client import Topics, open_kafka_client
from tests.support.until import until_beside

TOPICS = {task: Topics(f"{task}.requests", f"{task}.replies") for task in ("embed", "generate")}
ALIASES = {task: f"house-to-{task}" for task in TOPICS}
CALLERS, RECORD_EVERY_S, SEEN_S = 8, 0.2, 10.0


def model(name: str, task: str, *aliases: str) -> dict[str, Any]:
    """One model; its pods do this task."""
    source = {"path": "/opt/model", "revision": "1"}
    config = {"model": {"task": task}}
    return {"name": name, "aliases": list(aliases), "source": source, "config": config}


SPLIT = [model(f"house-{task}", task, alias) for task, alias in ALIASES.items()]
UNNAMED = [model(f"house-{task}", task) for task in ALIASES]
BOTH = {**model("house", "both"), "replicas": 2}
NAMED = {**BOTH, "aliases": list(ALIASES.values())}


@pytest.fixture(scope="module")
def release(new_release: NewRelease) -> Generator[Release]:
    topics = [
        {"name": each.requests, "model": ALIASES[task], "task": task, "reply_topic": each.replies}
        for task, each in TOPICS.items()
    ]
    values = synthetic(kafka_on_node.BOOTSTRAP, models=SPLIT, autoscaling={"mode": "none"})
    values["kafka"]["config"] = {"topics": topics, "partitions": 2}  # as many as the client reads
    with new_release(values).installed() as release:
        yield release


async def test_a_split_fleet_becomes_a_mixed_one_and_back_under_load(release: Release) -> None:
    address = release.address()
    async with AsyncExitStack() as stack:
        desks = {
            task: await stack.enter_async_context(open_kafka_client(kafka_on_node.BOOTSTRAP, each))
            for task, each in TOPICS.items()
        }
        load = Load(address, desks, CHANNEL, ALIASES)
        await load.learn()
        counts: list[int] = []
        async with load.flowing(CALLERS, RECORD_EVERY_S):
            mixed, split = [NAMED], [*SPLIT]
            for models in ([*SPLIT, BOTH], [NAMED, *UNNAMED], mixed, [NAMED, *UNNAMED], [*SPLIT, BOTH], split):
                await asyncio.to_thread(release.upgrade, {"models": models})
                await until_beside(lambda: not release.leaving("aggregator"), "the former ones are gone")
                answered = load.answered
                await asyncio.sleep(SEEN_S)
                counts.append(load.answered - answered)
    load.check()
    assert min(counts) > 0, "the load stood still"
