"""From a server per task to servers of both tasks, under load of both: nothing is lost, no call fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from loadtest.stack.kafka import KafkaBroker
from tests.cluster import kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.release import NAME, Release, get
from tests.cluster.traffic import CHANNEL
from tests.cluster.values import synthetic
from tests.faults.load_of_two_tasks import Load
from tests.support.kafka_client import Topics, open_kafka_client
from tests.support.until import wait_until

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
def release(new_release: NewRelease, kafka: KafkaBroker) -> Generator[Release]:
    """One server per task."""
    assert kafka.exit_code is None
    topics = [
        {"name": each.requests, "model": ALIASES[task], "task": task, "reply_topic": each.replies}
        for task, each in TOPICS.items()
    ]
    values = synthetic(kafka_on_node.BOOTSTRAP, models=SPLIT, autoscaling={"mode": "none"})
    values["kafka"]["config"] = {"topics": topics, "partitions": 2}  # as many as the client reads
    release = new_release(values)
    release.install()
    yield release
    release.uninstall()


async def test_a_split_fleet_becomes_a_mixed_one_and_back_under_load(release: Release) -> None:
    address = f"{get('service', f'{NAME}-aggregator')['spec']['clusterIP']}:50051"
    async with AsyncExitStack() as stack:
        desks = {
            task: await stack.enter_async_context(open_kafka_client(kafka_on_node.BOOTSTRAP, each))
            for task, each in TOPICS.items()
        }
        load = Load(address, desks, CHANNEL, ALIASES)
        await load.learn()
        sent: dict[str, tuple[str, int]] = {}
        counts: list[int] = []
        async with asyncio.TaskGroup() as flowing:
            for number in range(CALLERS):
                flowing.create_task(load.call(random.Random(number)))
            flowing.create_task(load.produce(RECORD_EVERY_S, sent))
            mixed, split = [NAMED], [*SPLIT]
            for models in ([*SPLIT, BOTH], [NAMED, *UNNAMED], mixed, [NAMED, *UNNAMED], [*SPLIT, BOTH], split):
                await asyncio.to_thread(release.upgrade, {"models": models})
                await asyncio.to_thread(
                    wait_until, lambda: not release.leaving("aggregator"), "the former ones are gone"
                )
                answered = load.answered
                await asyncio.sleep(SEEN_S)
                counts.append(load.answered - answered)
            load.over = True
        await load.collect(sent)
    load.check()
    assert min(counts) > 0, "the load stood still"
