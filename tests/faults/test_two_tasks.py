"""Servers that embed and generate in the same steps fail: every vector and every text is that of a run without faults.

Callers and producers ask for both at once. FAULTS_MIXED_S is how long the long row lasts, FAULTS_SEED the seed of its
faults.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import ModelServer
from protos.embedding.v1 import embedding_pb2
from protos.generation.v1 import generation_pb2
from tests.faults.load_of_two_tasks import CALL_S, POISON, Failed, Fault, Load, embedded, generated
from tests.faults.rows import Figures
from tests.faults.test_model_server_faults import restarting
from tests.support.kafka_client import Topics, open_kafka_client
from tests.support.processes import aggregators, synthetic

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SOAK_S = float(os.environ.get("FAULTS_MIXED_S", "600"))
_BOTH = {
    "MODEL__TASK": "both",
    "MODEL__MAX_INPUT_TOKENS": "512",
    "SYNTHETIC__FIXED_S": "0.01",
    "SYNTHETIC__PER_TOKEN_S": "0.0001",
    "CONSTANTS": '{"modelserver.settings:GrpcSettings.drain_timeout_s": 0.5}',
}
_ONE = ({**_BOTH, "MODEL__TASK": "embed"}, {**_BOTH, "MODEL__TASK": "generate"})


def faults_of(servers: Sequence[ModelServer]) -> Sequence[tuple[str, Fault]]:
    """What may befall any of them."""

    async def kill(chance: random.Random) -> None:
        victim = chance.choice(servers)
        victim.kill()
        await asyncio.to_thread(victim.start, CALL_S)

    async def stop(chance: random.Random) -> None:
        victim = chance.choice(servers)
        await asyncio.to_thread(victim.stop)
        await asyncio.to_thread(victim.start, CALL_S)

    async def hang(chance: random.Random) -> None:
        victim = chance.choice(servers)
        victim.pause()
        await asyncio.sleep(3.0)  # the fault itself
        victim.resume()

    return ("killed", kill), ("hung", hang), ("stopped", stop)


@contextmanager
def starting(folder: Path, *settings: Mapping[str, str]) -> Generator[list[ModelServer]]:
    """Model servers that compute nothing, to be started; all end with the block."""
    servers = [synthetic(folder / f"server-{number}.log", **each) for number, each in enumerate(settings)]
    try:
        yield servers
    finally:
        for server in servers:
            server.kill()


@contextmanager
def started(folder: Path, *settings: Mapping[str, str]) -> Generator[list[ModelServer]]:
    """The same, started."""
    with starting(folder, *settings) as servers:
        for server in servers:
            server.start()
        yield servers


@asynccontextmanager
async def opened(kafka: KafkaBroker, folder: Path, servers: Sequence[ModelServer], name: str) -> AsyncGenerator[Load]:
    """Load of both tasks for one aggregator, with one topic per task; all of it ends with the block."""
    async with AsyncExitStack() as resources:
        start = resources.enter_context(aggregators(kafka, folder, name))
        topics = {task: Topics(f"{name}.{task}.requests", f"{name}.{task}.replies") for task in ("embed", "generate")}
        configured = [
            {"name": each.requests, "task": task, "reply_topic": each.replies} for task, each in topics.items()
        ]
        model = {"name": servers[0].model, "servers": [server.address for server in servers], "task": "both"}
        settings = {"MODELS": json.dumps([model]), "KAFKA__TOPICS": json.dumps(configured)}
        running = await asyncio.to_thread(start, topics=topics["embed"], group=name, settings=settings)
        clients = {
            task: await resources.enter_async_context(open_kafka_client(kafka.bootstrap, each))
            for task, each in topics.items()
        }
        process = running.process
        load = Load(process.address, clients, servers=servers, metrics_addresses=[process.metrics_address])
        await load.learn()
        yield load


@pytest.mark.short
@pytest.mark.row("servers that embed and generate in the same steps are killed, stopped and hang, beside one per task")
@pytest.mark.timeout(580)
async def test_servers_of_both_tasks_fail_and_every_vector_and_text_is_right(
    kafka: KafkaBroker, tmp_path: Path, figures: Figures
) -> None:
    with started(tmp_path, _BOTH, _BOTH, *_ONE) as servers:
        async with opened(kafka, tmp_path, servers, "mixed-short") as load, load.flowing(4, every_s=0.5):
            await load.break_things(faults_of(servers), seconds=0.0)
    load.take(figures)


@pytest.mark.row("servers that embed and generate in the same steps are killed, stopped and hang, for ten minutes")
@pytest.mark.timeout(SOAK_S + 600)
async def test_servers_of_both_tasks_fail_for_long(kafka: KafkaBroker, tmp_path: Path, figures: Figures) -> None:
    with started(tmp_path, _BOTH, _BOTH, _BOTH) as servers:
        async with opened(kafka, tmp_path, servers, "mixed-long") as load, load.flowing(12, every_s=0.5):
            await load.break_things(faults_of(servers), SOAK_S)
    load.take(figures)


@pytest.mark.short
@pytest.mark.row("a server per task is replaced by two of both tasks, and these by one per task again")
@pytest.mark.timeout(580)
async def test_a_split_fleet_becomes_a_mixed_one_and_back(kafka: KafkaBroker, tmp_path: Path, figures: Figures) -> None:
    with starting(tmp_path, *_ONE, _BOTH, _BOTH) as servers:
        split, mixed = servers[:2], servers[2:]
        for server in split:
            server.start()
        async with opened(kafka, tmp_path, servers, "split-to-mixed") as load, load.flowing(4, every_s=0.5):
            for come, go in ((mixed, split), (split, mixed)):
                for server in come:
                    await asyncio.to_thread(server.start, CALL_S)
                await load.until_in_use(4)
                for server in go:
                    await asyncio.to_thread(server.stop)
                await load.until_in_use(2)
                await load.answers(16)
    load.take(figures)


@pytest.mark.parametrize("mode", [pytest.param("error", marks=pytest.mark.short), "exit"])
@pytest.mark.row("a poison of each task on servers of both, which raise or end")
@pytest.mark.timeout(580)
async def test_a_poison_of_one_task_costs_itself_alone(
    kafka: KafkaBroker, tmp_path: Path, figures: Figures, mode: str
) -> None:
    fails = {**_BOTH, "SYNTHETIC__POISON_TOKEN_ID": str(POISON), "SYNTHETIC__POISON_MODE": mode}
    with started(tmp_path, fails, fails) as servers:
        async with opened(kafka, tmp_path, servers, f"poison-{mode}") as load, restarting(servers), load.flowing(8):
            assert not re.search(rf"\b{POISON}\b", str(load.expected["generate"])), "choose other prompts"
            await load.answers(16)
            ends = [[await poison(load.address, task) for _ in range(2)] for task in ("embed", "generate")]
            await load.answers(16)
    load.take(figures)
    for first, again in ends:
        assert first.startswith("INTERNAL")
        assert "not tried again" in again


async def poison(address: str, task: str) -> str:
    """How a call with the poison ends; each task has an input that the other one does not know."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            if task == "embed":
                ids = embedding_pb2.TokenIds(ids=[7, POISON, 8])
                query = embedding_pb2.EmbedRequest(inputs=[embedding_pb2.Input(token_ids=ids)])
                return str(await embedded(channel, query))
            ids = embedding_pb2.TokenIds(ids=[8, POISON, 7])
            sampling = generation_pb2.Sampling(max_tokens=5)
            return str(await generated(channel, generation_pb2.GenerateRequest(token_ids=ids, sampling=sampling)))
        except Failed as error:
            return str(error)
