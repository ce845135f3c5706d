"""Servers of a model that ranks and of one that embeds are killed: every score and vector is right nevertheless.

Callers and producers ask for both at once. FAULTS_SEED is the seed of the faults.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import DEFAULT_MODEL_NAME, ModelServer
from tests.faults.load_of_two_tasks import Load
from tests.faults.rows import Figures
from tests.faults.test_two_tasks import faults_of, started
from tests.support.kafka_client import Topics, open_kafka_client
from tests.support.processes import aggregators

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RANKER = "ranker"
_EMBEDS = {
    "SYNTHETIC__FIXED_S": "0.01",
    "SYNTHETIC__PER_TOKEN_S": "0.0001",
    "CONSTANTS": '{"modelserver.settings:GrpcSettings.drain_timeout_s": 0.5}',
}
_RANKS = {**_EMBEDS, "MODEL__TASK": "rank", "MODEL__NAME": RANKER}


@asynccontextmanager
async def opened(
    kafka: KafkaBroker, folder: Path, servers: Mapping[str, Sequence[ModelServer]], name: str
) -> AsyncGenerator[Load]:
    """Load of both models for one aggregator, with a topic each; `servers` by task."""
    models = {"embed": DEFAULT_MODEL_NAME, "rank": RANKER}
    topics = {task: Topics(f"{name}.{task}.requests", f"{name}.{task}.replies") for task in models}
    configured = [
        {"name": each.requests, "task": task, "reply_topic": each.replies, "model": models[task]}
        for task, each in topics.items()
    ]
    served = [{"name": models[task], "servers": [each.address for each in its]} for task, its in servers.items()]
    every = [each for its in servers.values() for each in its]
    settings = {"MODELS": json.dumps(served), "KAFKA__TOPICS": json.dumps(configured)}
    async with AsyncExitStack() as resources:
        start = resources.enter_context(aggregators(kafka, folder, name))
        running = await asyncio.to_thread(start, topics=topics["embed"], group=name, settings=settings)
        clients = {
            task: await resources.enter_async_context(open_kafka_client(kafka.bootstrap, each))
            for task, each in topics.items()
        }
        process = running.process
        load = Load(process.address, clients, models=models, servers=every, metrics_addresses=[process.metrics_address])
        await load.until_in_use(len(every))
        await load.learn()
        yield load


@pytest.mark.short
@pytest.mark.row("servers that rank are killed, stopped and hang, beside servers that embed for the same aggregator")
@pytest.mark.timeout(580)
async def test_servers_that_rank_fail_and_every_score_is_right(
    kafka: KafkaBroker, tmp_path: Path, figures: Figures
) -> None:
    with started(tmp_path, _RANKS, _RANKS, _EMBEDS, _EMBEDS) as servers:
        by_task = {"rank": servers[:2], "embed": servers[2:]}
        async with opened(kafka, tmp_path, by_task, "ranking") as load, load.flowing(6, every_s=0.5):
            for _ in range(3):
                await load.break_things(faults_of(servers), seconds=0.0)
    load.take(figures)
