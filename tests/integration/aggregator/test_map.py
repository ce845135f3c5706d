"""docs/architecture.md lists every file that a record, a call and a generation execute, and no other."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import aiohttp
import grpc.aio
import pytest

from aggregator.all_settings import AllSettings
from aggregator.app import Aggregator
from aggregator.settings.aggregator import ENV_PREFIX
from k8s.pod.settings import load
from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.ports import free_ports
from loadtest.stack.service import DEFAULT_MODEL_NAME, ModelServer
from protos.embedding.v1 import embedding_pb2, embedding_pb2_grpc
from protos.generation.v1 import generation_pb2, generation_pb2_grpc
from tests.support.architecture_page import ROOT, WAYS, executed_files, files_table, timer_files
from tests.support.kafka_client import Topics, open_kafka_client, query
from tests.support.processes import synthetic
from tests.support.until import until

ASIDE = ("observability", "reports", "settings")
IDLE_S = 4.0
"""Longer than what repeats while nothing is asked: fetches, commits, looks at servers."""


@pytest.fixture
def generating(tmp_path: Path) -> Iterator[ModelServer]:
    with synthetic(tmp_path / "generating", MODEL__TASK="generate", MODEL__NAME="texts") as server:
        yield server


class Executed:
    """The product's files whose functions were called since `clear`, on every thread."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            self.files.add(frame.f_code.co_filename)

    def clear(self) -> set[str]:
        """Those found so far, below aggregator/."""
        found, self.files = self.files, set()
        return {
            str(Path(file).relative_to(ROOT))
            for file in found
            if file.startswith(f"{ROOT}/aggregator/") and Path(file).relative_to(ROOT).parts[1] not in ASIDE
        }


@pytest.fixture
def executed() -> Iterator[Executed]:
    found, before = Executed(), sys.getprofile()
    threading.setprofile(found.note)
    sys.setprofile(found.note)
    yield found
    sys.setprofile(before)
    threading.setprofile(None)


@asynccontextmanager
async def running(settings: AllSettings) -> AsyncGenerator[Aggregator]:
    """An aggregator in this process, once it serves both of its models."""
    aggregator, stop = Aggregator(settings), asyncio.Event()
    work = asyncio.create_task(aggregator.run(stop))
    try:
        async with aiohttp.ClientSession() as session:

            async def ready() -> bool:
                assert not work.done(), work
                try:
                    async with session.get(f"http://{settings.telemetry.metrics_bind}/readyz") as answer:
                        is_ready = answer.status == 200
                    async with session.get(f"http://{settings.http.bind}/v1/models") as answer:
                        return is_ready and len((await answer.json())["data"]) == 2
                except aiohttp.ClientConnectionError:
                    return False

            await until(ready)
        yield aggregator
    finally:
        stop.set()
        await work


async def test_the_page_lists_what_each_way_executes_and_no_more(
    kafka: KafkaBroker, quick: ModelServer, generating: ModelServer, executed: Executed, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"map-{secrets.token_hex(4)}"
    topics = Topics(name, f"{name}-replies")
    grpc_port, http_port, metrics_port = free_ports(3)
    models = [
        {"name": DEFAULT_MODEL_NAME, "servers": [quick.address]},
        {"name": "texts", "servers": [generating.address]},
    ]
    told = {
        "KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
        "KAFKA__CREATE_TOPICS": "true",
        "KAFKA__TOPICS": json.dumps([{"name": topics.requests}]),
        "KAFKA__REPLY_TOPIC": topics.replies,
        "KAFKA__GROUP_ID": topics.requests,
        "KAFKA__PARTITIONS": "2",
        "GRPC__BIND": f"127.0.0.1:{grpc_port}",
        "HTTP__BIND": f"127.0.0.1:{http_port}",
        "TELEMETRY__METRICS_BIND": f"127.0.0.1:{metrics_port}",
        "MODELS": json.dumps(models),
    }
    for name, value in told.items():
        monkeypatch.setenv(ENV_PREFIX + name, value)
    async with (
        running(load(AllSettings, ENV_PREFIX, None)),
        open_kafka_client(kafka.bootstrap, topics) as client,
        grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
        aiohttp.ClientSession(f"http://127.0.0.1:{http_port}") as session,
    ):

        async def record() -> None:
            await client.exchange(query("rain"))
            await client.until_committed(topics.requests)

        async def call() -> None:
            request = embedding_pb2.EmbedRequest(inputs=[embedding_pb2.Input(text="snow")])
            assert (await embedding_pb2_grpc.EmbeddingsStub(channel).Embed(request)).embeddings

        async def http_call() -> None:
            async with session.post("/v1/embeddings", json={"input": "hail"}) as answer:
                assert answer.status == 200, await answer.text()

        async def generation() -> None:
            request = generation_pb2.GenerateRequest(model="texts", prompt="fog")
            request.sampling.max_tokens = 3
            stub = generation_pb2_grpc.GenerationStub(channel)
            assert [each async for each in stub.Generate(request)]

        ways: dict[str, Callable[[], Awaitable[None]]] = dict(
            zip(WAYS, (record, call, http_call, generation), strict=True)
        )
        for way in ways.values():  # what only the first one does, such as to connect, is on nobody's way
            await way()
        await asyncio.sleep(1.0)
        executed.clear()
        await asyncio.sleep(IDLE_S)
        idle = executed.clear()
        found: dict[str, set[str]] = {}
        for name, way in ways.items():
            await way()
            await asyncio.sleep(0.2)
            found[name] = executed.clear()
    listed, timers = executed_files(), timer_files()
    right = {
        name: (files - idle - timers)
        | (listed[name] & files)  # what runs on timers too is on the way if the page says so
        for name, files in found.items()
    }
    assert listed == right, f"the table in docs/architecture.md should be:\n\n{files_table(right)}"
