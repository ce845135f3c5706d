"""The whole server in this process, over real gRPC, with engines that break when told to."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from k8s.pod import telemetry
from k8s.pod.telemetry import TelemetrySettings
from loadtest.stack.ports import free_ports
from modelserver import model_files, startup
from modelserver.app import Server
from modelserver.engines.choice import Choice
from modelserver.engines.engine import CountLaunch, Engine, Launch
from modelserver.model_files import ModelFiles
from modelserver.settings import EngineSettings, GrpcSettings, ModelServerSettings
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc
from tests.support.fake_step_engine import DEADLY, POISON, WAIT_S, FakeStepEngine

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return model_files.read(model_files.locate("", ""), "r1")


Planned = Engine | Exception | Callable[[], Engine]
"""What a start gets: an engine, a failure, or a load that takes its time."""


@dataclass
class Running:
    """A server under test, and a channel to it."""

    stub: Any
    health: Any
    metrics_address: str
    ended: asyncio.Task[int]
    counts: Sequence[CountLaunch]

    async def embed(self, *queries: list[int], **changes: Any) -> pb.EmbedBatchResponse:
        ids = np.array([token for query in queries for token in query], "<i4").tobytes()
        lengths = np.array([len(query) for query in queries], "<i4").tobytes()
        fields: dict[str, Any] = {
            "model": "all-minilm-l6-v2",
            "model_revision": "r1",
            "token_ids": ids,
            "lengths": lengths,
        }
        answer: pb.EmbedBatchResponse = await self.stub.EmbedBatch(
            pb.EmbedBatchRequest(**{**fields, **changes}), timeout=WAIT_S
        )
        return answer

    async def code(self, *queries: list[int], **changes: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.embed(*queries, **changes)
        return refused.value.code()

    async def until(self, *wanted: int) -> None:
        """Watch the health pass through these states."""
        states = list(wanted)
        async for answer in self.health.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S):
            if answer.status == states[0]:
                states.pop(0)
            if not states:
                return


def settings_of() -> ModelServerSettings:
    return ModelServerSettings(
        grpc=GrpcSettings(bind=f"127.0.0.1:{free_ports(1)[0]}").model_copy(update={"drain_timeout_s": 2.0}),
        engine=EngineSettings(kind="core"),
    )


@asynccontextmanager
async def running(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch, *engines: Planned, fallback: str = ""
) -> AsyncGenerator[Running]:
    left = iter(engines)

    counts = list[CountLaunch]()

    def build(_settings: object, _files: object, _task: object, _wings: object, count: CountLaunch) -> Choice:
        count(Launch.EAGER)  # as steps of the profile would be
        counts.append(count)
        engine = next(left)
        if callable(engine):
            engine = engine()
        if isinstance(engine, Exception):
            raise engine
        return Choice(engine, fallback)

    monkeypatch.setattr(startup, "build", build)
    monitoring = telemetry.start(TelemetrySettings(metrics_bind="127.0.0.1:0"), "modelserver")
    settings = settings_of()
    server = Server(settings, files, monitoring)
    ended = asyncio.create_task(server.run())
    async with grpc.aio.insecure_channel(settings.grpc.bind) as channel:
        try:
            await channel.channel_ready()
            health = health_pb2_grpc.HealthStub(channel)
            yield Running(pb_grpc.ModelServerStub(channel), health, monitoring.metrics_address, ended, counts)
        finally:
            if not ended.done():
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait([ended])
            monitoring.shutdown()


def opened(engine: FakeStepEngine) -> FakeStepEngine:
    engine.gate.set()
    return engine


Run = Callable[..., Any]


@pytest.fixture
def run(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> Run:
    def start(*engines: Planned, fallback: str = "") -> Any:
        return running(files, monkeypatch, *engines, fallback=fallback)

    return start


async def test_until_the_engine_is_ready_it_refuses_but_gives_the_tokenizer(run: Run) -> None:
    engine = FakeStepEngine()
    async with run(engine) as server:
        check = await server.health.Check(health_pb2.HealthCheckRequest(service="modelserver.v1.ModelServer"))
        assert check.status == NOT_SERVING
        assert await server.code([1]) is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.stub.Describe(pb.DescribeRequest(), timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        names = {chunk.file_name async for chunk in server.stub.GetTokenizer(pb.GetTokenizerRequest())}
        assert "tokenizer.json" in names
        engine.gate.set()
        await server.until(SERVING)


async def test_poison_is_internal_and_the_next_batch_is_fine(run: Run) -> None:
    async with run(opened(FakeStepEngine())) as server:
        await server.until(SERVING)
        assert await server.code([POISON]) is grpc.StatusCode.INTERNAL
        assert (await server.embed([1])).step_tokens == 1


async def test_an_engine_that_cannot_be_rebuilt_ends_the_process_with_1(run: Run) -> None:
    async with run(opened(FakeStepEngine()), RuntimeError("out of memory")) as server:
        await server.until(SERVING)
        assert await server.code([DEADLY]) is grpc.StatusCode.INTERNAL
        assert await server.ended == 1


async def test_a_step_that_never_ends_does_not_hold_up_the_end(run: Run) -> None:
    engine = opened(FakeStepEngine())
    async with run(engine) as server:
        await server.until(SERVING)
        engine.gate.clear()
        engine.running.clear()
        stuck = asyncio.create_task(server.code([1]))
        assert await asyncio.to_thread(engine.running.wait, WAIT_S)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await server.ended == 0
        engine.gate.set()
        assert await stuck in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}


async def test_what_was_refused_and_a_fallback_are_counted(run: Run) -> None:
    async with run(opened(FakeStepEngine()), fallback="it disagrees") as server:
        await server.until(SERVING)
        await server.embed([1], [], [-1])
        await server.code([1], model="another")
        await server.code([POISON])
        text = await asyncio.to_thread(read, server.metrics_address, "/metrics")
        assert await asyncio.to_thread(read, server.metrics_address, "/readyz")
        assert await asyncio.to_thread(read, server.metrics_address, "/livez")
    assert 'tokenbatch_engine_refused_total{code="INVALID_ARGUMENT",what="query"} 2' in text
    assert 'tokenbatch_engine_refused_total{code="FAILED_PRECONDITION",what="batch"} 1' in text
    assert 'tokenbatch_engine_refused_total{code="INTERNAL",what="batch"} 1' in text
    assert 'tokenbatch_engine_failed_steps_total{composition="single"} 1' in text
    assert "tokenbatch_engine_fallbacks_total 1" in text


async def test_launches_are_counted_from_the_first_step_that_serves(run: Run) -> None:
    async with run(opened(FakeStepEngine())) as server:
        await server.until(SERVING)
        for launch in (Launch.GRAPH, Launch.GRAPH, Launch.EAGER):
            server.counts[0](launch)
        text = await asyncio.to_thread(read, server.metrics_address, "/metrics")
    assert 'tokenbatch_engine_steps_total{launch="graph"} 2' in text
    assert 'tokenbatch_engine_steps_total{launch="eager"} 1' in text


async def test_a_question_that_comes_behind_bulk_is_answered_before_it(run: Run) -> None:
    engine = opened(FakeStepEngine())
    async with run(engine) as server:
        await server.until(SERVING)
        engine.gate.clear()
        engine.running.clear()
        order: list[str] = []

        async def send(name: str, queries: list[list[int]], priority: pb.Priority, queued: int) -> asyncio.Task[None]:
            """Send a batch that may not be merged, and wait until so many tokens wait."""

            async def answered() -> None:
                told = await server.embed(*queries, priority=priority, isolate=True)
                order.append(name)
                assert pb.PRIORITY_INTERACTIVE in told.recent_priorities

            sent = asyncio.create_task(answered())
            while f"tokenbatch_engine_queued_tokens {queued}.0" not in (
                text := await asyncio.to_thread(read, server.metrics_address, "/metrics")
            ):
                assert "tokenbatch_engine_queued_tokens" in text
                await asyncio.sleep(0.01)
            return sent

        sent = [asyncio.create_task(server.embed([1], priority=pb.PRIORITY_BACKGROUND))]
        assert await asyncio.to_thread(engine.running.wait, WAIT_S)
        sent += [await send("bulk", [[2] * 15], pb.PRIORITY_BACKGROUND, 15)]
        sent += [await send("question", [[3]], pb.PRIORITY_INTERACTIVE, 16)]
        engine.gate.set()
        await asyncio.gather(*sent)
    assert order == ["question", "bulk"]


def read(address: str, path: str) -> str:
    with urlopen(f"http://{address}{path}", timeout=WAIT_S) as answer:
        text: str = answer.read().decode()
        return text
