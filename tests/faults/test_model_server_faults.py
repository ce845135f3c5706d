"""Model servers die, hang, crawl and answer nonsense under load: their work goes elsewhere, and they come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from loadtest.stack.service import DEFAULT_MODEL_NAME, ModelServer
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc
from tests.fakes.model_server import FakeModelServer, embed_response
from tests.faults.expected import DIMENSIONS
from tests.faults.rows import Figures
from tests.faults.scene import Scene
from tests.faults.steady_load import Intent, Planned, question
from tests.integration.aggregator.desk import query
from tests.integration.aggregator.scrape import metrics

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]

POISON = "9252"  # the token id of "deadly", a word of no other question


@pytest.mark.row("one of two model servers killed (SIGKILL, as when out of memory), and restarted")
async def test_a_killed_model_server_returns(scene: Scene, figures: Figures) -> None:
    victim, _ = [await scene.server() for _ in range(2)]
    await scene.aggregator()
    async with scene.under_load():
        async with scene.fault():
            for _ in range(3):
                victim.kill()
                await scene.answers(200)
                await asyncio.to_thread(victim.start)
        await scene.answers(1500)
        assert metrics(victim.metrics_address).value("embed_engine_queries_total") > 10
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()


@pytest.mark.row("one of two model servers frozen (SIGSTOP)")
@pytest.mark.parametrize("frozen_s", [10.0, 60.0])
async def test_a_frozen_model_server_is_left_out(scene: Scene, figures: Figures, frozen_s: float) -> None:
    victim, _ = [await scene.server() for _ in range(2)]
    await scene.aggregator()
    async with scene.under_load():
        async with scene.fault():
            victim.pause()
            await asyncio.sleep(frozen_s)  # the fault itself
            victim.resume()
        await scene.answers(1500)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()


@pytest.mark.row("one of two model servers runs only a tenth of the time, for 20 s")
async def test_a_slow_model_server_is_endured(scene: Scene, figures: Figures) -> None:
    victim, _ = [await scene.server() for _ in range(2)]
    await scene.aggregator()
    async with scene.under_load():
        async with scene.fault():
            for _ in range(100):
                victim.pause()
                await asyncio.sleep(0.18)  # the fault itself
                victim.resume()
                await asyncio.sleep(0.02)
        await scene.answers(1500)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()


@pytest.mark.row("all model servers gone")
@pytest.mark.parametrize("gone_s", [5.0, 60.0])
async def test_without_model_servers_records_wait(scene: Scene, figures: Figures, gone_s: float) -> None:
    servers = [await scene.server() for _ in range(2)]
    aggregator = await scene.aggregator()
    async with scene.under_load():
        async with scene.fault():
            for server in servers:
                server.kill()
            await asyncio.sleep(gone_s)  # the fault itself
            shown = metrics(aggregator.metrics_address)
            for server in servers:
                await asyncio.to_thread(server.start)
        await scene.answers(1500)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert shown.value("embed_consumer_paused") == scene.partitions
    assert shown.value("embed_expired_total") == 0


@pytest.mark.row("one of two model servers returns values that are not numbers, too few rows, and undecodable bytes")
async def test_wrong_answers_are_not_passed_on(scene: Scene, figures: Figures) -> None:
    sound = await scene.server()
    liar = FakeModelServer()
    liar.said = await described(sound)
    liar.said.instance_id = "liar"
    told = 0

    def lie(request: pb.EmbedBatchRequest) -> pb.EmbedBatchResponse:
        nonlocal told
        told += 1
        answer = embed_response(request, DIMENSIONS)
        if told % 2:
            answer.embeddings = b"\x00\x00\xc0\x7f" * (len(answer.embeddings) // 4)
        else:
            answer.embeddings = answer.embeddings[: -4 * DIMENSIONS]
        return answer

    liar.answer = lie
    await liar.start()
    try:
        await scene.aggregator(sound.address, liar.address)
        async with scene.under_load():
            async with scene.fault():
                await scene.answers(1000)
                liar.garbage = b"\xff\xff\xff"
                await scene.answers(1000)
            await scene.answers(300)
        verdict = figures.take(await scene.verdict(), lies=told)
    finally:
        await liar.kill()
    assert verdict.problems == ()
    assert told > 0


async def described(server: ModelServer) -> pb.DescribeResponse:
    """What a model server says of itself."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        return await pb_grpc.ModelServerStub(channel).Describe(pb.DescribeRequest())


@pytest.mark.row("a query that makes the engine fail with every batch that holds it")
@pytest.mark.parametrize(("mode", "every"), [("error", 300), ("exit", 3000)])
async def test_poison_is_dead_lettered_alone(scene: Scene, figures: Figures, mode: str, every: int) -> None:
    def some_poison(number: int, request_id: str) -> Planned:
        if number % every != every // 2:
            return question(number, request_id)
        intent = Intent(codes=frozenset({"INTERNAL"}), dead=True)
        return Planned(query(f"deadly {number}", request_id), intent)

    for _ in range(2):
        await scene.server(SYNTHETIC__POISON_TOKEN_ID=POISON, SYNTHETIC__POISON_MODE=mode)
    await scene.aggregator()
    async with restarting(scene.servers), scene.fault(), scene.under_load(200, some_poison):
        await scene.answers(3000, timeout_s=200)
    async with restarting(scene.servers):
        verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert verdict.dead_lettered >= 1


@asynccontextmanager
async def restarting(servers: list[ModelServer]) -> AsyncGenerator[None]:
    """Model servers that end are started again, as Kubernetes would."""

    async def watch() -> None:
        while True:
            for server in servers:
                if server.exit_code is not None:
                    await asyncio.to_thread(server.start)
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch(), name="restart model servers")
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


@pytest.mark.row("a record waits for a model without servers, while later records are served")
async def test_a_stuck_record_pauses_only_its_partition(scene: Scene, figures: Figures) -> None:
    server = await scene.server()
    away = ModelServer(
        scene.folder / "away.log",
        settings={
            "ENGINE__KIND": "synthetic",
            "PROFILE__ENABLED": "false",
            "MODEL__NAME": "away",
            "SYNTHETIC__DIMENSIONS": str(DIMENSIONS),
        },
    )
    models = [
        {"name": DEFAULT_MODEL_NAME, "servers": [server.address]},
        {"name": "away", "servers": [away.address]},
    ]
    scene.servers.append(away)
    aggregator = await scene.aggregator(
        settings={"MODELS": json.dumps(models), "KAFKA__CLIENT__MAX_COMMIT_SPAN": "500"}
    )

    def for_the_other(number: int, request_id: str) -> Planned:
        text = f"wait for it {number}"
        return Planned(query(text, request_id, model="away"), Intent(text))

    async with scene.under_load(200):
        async with scene.fault():
            await scene.load.send(1, for_the_other, partition=0)
            await scene.answers(5000)
            shown = metrics(aggregator.metrics_address)
            await asyncio.to_thread(away.start)
        await scene.answers(1500)
    verdict = figures.take(await scene.verdict())
    assert verdict.problems == ()
    assert shown.value("embed_consumer_paused") == 1
    assert shown.value("embed_consumer_paused", partition="0") == 1
