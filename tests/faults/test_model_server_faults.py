"""Model servers die, hang, crawl and answer nonsense under load: their work goes elsewhere, and they come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from loadtest.stack.errors import StackError
from loadtest.stack.service import DEFAULT_MODEL_NAME, ModelServer
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc
from tests.faults.expected import DIMENSIONS
from tests.faults.row_stack import RowStack
from tests.faults.rows import Figures
from tests.faults.steady_load import Intent, Planned, question
from tests.support.fake_model_server import FakeModelServer, embed_response
from tests.support.kafka_client import query
from tests.support.processes import synthetic
from tests.support.scrape import metrics
from tests.support.until import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(580)]

CLS = "101"  # the token id that every query begins with
POISON = "9252"  # the token id of "deadly", a word of no other question


@pytest.mark.row("one of two model servers killed (SIGKILL, as when out of memory), and restarted")
async def test_a_killed_model_server_returns(stack: RowStack, figures: Figures) -> None:
    victim, _ = [await stack.server() for _ in range(2)]
    await stack.aggregator()
    async with stack.under_load():
        async with stack.fault():
            for _ in range(3):
                victim.kill()
                await stack.answers(200)
                await asyncio.to_thread(victim.start)
        await stack.answers(1500)
        assert metrics(victim.metrics_address).value("tokenbatch_engine_queries_total") > 10
    await stack.passes(figures)


@pytest.mark.row("one of two model servers frozen (SIGSTOP)")
@pytest.mark.parametrize("frozen_s", [10.0, 60.0])
async def test_a_frozen_model_server_is_left_out(stack: RowStack, figures: Figures, frozen_s: float) -> None:
    victim, _ = [await stack.server() for _ in range(2)]
    await stack.aggregator()
    async with stack.fault_under_load():
        victim.pause()
        await asyncio.sleep(frozen_s)  # the fault itself
        victim.resume()
    await stack.passes(figures)


@pytest.mark.row("one of two model servers runs only a tenth of the time, for 20 s")
async def test_a_slow_model_server_is_endured(stack: RowStack, figures: Figures) -> None:
    victim, _ = [await stack.server() for _ in range(2)]
    await stack.aggregator()
    async with stack.fault_under_load():
        for _ in range(100):
            victim.pause()
            await asyncio.sleep(0.18)  # the fault itself
            victim.resume()
            await asyncio.sleep(0.02)
    await stack.passes(figures)


@pytest.mark.row("all model servers gone")
@pytest.mark.parametrize("gone_s", [5.0, 60.0])
async def test_without_model_servers_records_wait(stack: RowStack, figures: Figures, gone_s: float) -> None:
    servers = [await stack.server() for _ in range(2)]
    aggregator = await stack.aggregator()
    async with stack.fault_under_load():
        for server in servers:
            server.kill()
        await asyncio.sleep(gone_s)  # the fault itself
        shown = metrics(aggregator.metrics_address)
        for server in servers:
            await asyncio.to_thread(server.start)
    await stack.passes(figures)
    assert shown.value("tokenbatch_consumer_paused") == stack.partitions
    assert shown.value("tokenbatch_expired_total") == 0


@pytest.mark.row("one of two model servers returns values that are not numbers, too few rows, and undecodable bytes")
async def test_wrong_answers_are_not_passed_on(stack: RowStack, figures: Figures) -> None:
    sound = await stack.server()
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
        await stack.aggregator(sound.address, liar.address)
        async with stack.fault_under_load(then=300):
            await stack.answers(1000)
            liar.garbage = b"\xff\xff\xff"
            await stack.answers(1000)
        verdict = figures.take(await stack.verdict(), lies=told)
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
async def test_poison_is_dead_lettered_alone(stack: RowStack, figures: Figures, mode: str, every: int) -> None:
    def some_poison(number: int, request_id: str) -> Planned:
        if number % every != every // 2:
            return question(number, request_id)
        intent = Intent(codes=frozenset({"INTERNAL"}), dead=True)
        return Planned(query(f"deadly {number}", request_id), intent)

    for _ in range(2):
        await stack.server(SYNTHETIC__POISON_TOKEN_ID=POISON, SYNTHETIC__POISON_MODE=mode)
    await stack.aggregator()
    async with restarting(stack.servers), stack.fault(), stack.under_load(200, some_poison):
        await stack.answers(3000, timeout_s=200)
    async with restarting(stack.servers):
        verdict = figures.take(await stack.verdict())
    assert verdict.problems == ()
    assert verdict.dead_lettered >= 1


@pytest.mark.row("steps of both model servers raise, end the process or hang by chance for 15 s")
@pytest.mark.parametrize(("mode", "share"), [("error", 0.3), ("error", 0.9), ("exit", 0.1), ("hang", 0.1)])
async def test_steps_that_fail_by_chance_condemn_nobody(
    stack: RowStack, figures: Figures, mode: str, share: float
) -> None:
    chance = {
        "SYNTHETIC__POISON_SHARE": str(share),
        "SYNTHETIC__POISON_MODE": mode,
        "CONSTANTS": '{"modelserver.watch:TIMEOUTS_S": {"step": 2}}',
    }
    fault = stack.folder / "fault"
    for _ in range(2):
        await stack.server(**chance, SYNTHETIC__POISON_WHILE=str(fault))
    await stack.aggregator()
    async with restarting(stack.servers):
        async with stack.fault_under_load(then=500):
            fault.touch()
            await asyncio.sleep(15.0)  # the fault itself
            fault.unlink()
        await stack.passes(figures)


@pytest.mark.row("one of two model servers gives NaN in every step, in one row of each, or only zeros, for 15 s")
@pytest.mark.parametrize("lie", [pytest.param("nan", marks=pytest.mark.short), "nan_row", "zeros"])
async def test_vectors_of_a_lying_engine_condemn_nobody(stack: RowStack, figures: Figures, lie: str) -> None:
    fault = stack.folder / "fault"
    await stack.server()
    await stack.server(SYNTHETIC__POISON_SHARE="1", SYNTHETIC__POISON_MODE=lie, SYNTHETIC__POISON_WHILE=str(fault))
    aggregator = await stack.aggregator()
    async with restarting(stack.servers):
        async with stack.fault_under_load(then=500):
            fault.touch()
            await asyncio.sleep(15.0)  # the fault itself
            fault.unlink()
        retried = metrics(aggregator.metrics_address).value("tokenbatch_retries_total")
        await stack.passes(figures)
    assert retried > 0


@pytest.mark.row("queries that the engine answers with NaN or zeros, each in its row of a shared step")
@pytest.mark.parametrize("lie", ["nan", "zeros"])
async def test_queries_with_no_vector_are_dead_lettered_alone(stack: RowStack, figures: Figures, lie: str) -> None:
    def some_poison(number: int, request_id: str) -> Planned:
        if number % 300 != 150:
            return question(number, request_id)
        intent = Intent(codes=frozenset({"INTERNAL"}), dead=True)
        return Planned(query(f"deadly {number}", request_id), intent)

    for _ in range(2):
        await stack.server(SYNTHETIC__POISON_TOKEN_ID=POISON, SYNTHETIC__POISON_MODE=lie)
    await stack.aggregator()
    async with stack.fault(), stack.under_load(200, some_poison):
        await stack.answers(3000, timeout_s=200)
    verdict = figures.take(await stack.verdict())
    assert verdict.problems == ()
    assert verdict.dead_lettered >= 1
    for server in stack.servers:
        assert metrics(server.metrics_address).value("tokenbatch_engine_rebuilds_total") == 0


@pytest.mark.row("both model servers hang for 3 s in every step of more than 60 tokens")
async def test_servers_that_hang_on_large_steps_answer_small_ones(stack: RowStack, figures: Figures) -> None:
    hangs = {"SYNTHETIC__POISON_ABOVE_TOKENS": "60", "SYNTHETIC__POISON_MODE": "stall"}
    fault = stack.folder / "fault"
    for _ in range(2):
        await stack.server(**hangs, SYNTHETIC__POISON_WHILE=str(fault), SYNTHETIC__FIXED_S="0.05")
    await stack.aggregator()
    async with restarting(stack.servers):
        async with stack.fault_under_load():
            fault.touch()
            await stack.answers(1000, timeout_s=100)
            fault.unlink()
        await stack.passes(figures)


@pytest.mark.row("one of two model servers fails every step, hangs in each, or loses its GPU (restarted)")
@pytest.mark.parametrize("mode", ["error", "hang", "lose"])
async def test_an_engine_that_only_fails_draws_no_traffic(stack: RowStack, figures: Figures, mode: str) -> None:
    await stack.server()
    every_query = {"SYNTHETIC__POISON_TOKEN_ID": CLS, "SYNTHETIC__POISON_MODE": mode}
    victim = await stack.server(**every_query, CONSTANTS='{"modelserver.watch:TIMEOUTS_S": {"step": 5}}')
    first = victim.pid
    await stack.aggregator()
    async with restarting(stack.servers):
        async with stack.fault_under_load():
            await stack.answers(2000)
        verdict = figures.take(await stack.verdict())
    assert verdict.problems == ()
    if mode == "error":  # the aggregator turns away from it before it has failed eight steps twice
        assert metrics(victim.metrics_address).value("tokenbatch_engine_failed_steps_total") > 0
    else:
        assert victim.pid != first


HANGS = {
    "load": {"SYNTHETIC__LOAD_S": "1000"},
    "profile": {"SYNTHETIC__FIXED_S": "1000"},
    "close": {"SYNTHETIC__POISON_TOKEN_ID": CLS, "SYNTHETIC__POISON_MODE": "break", "SYNTHETIC__CLOSE_S": "1000"},
}
"""By the phase in which the engine hangs; one is closed once it broke."""


@pytest.mark.row("one of two model servers hangs while it loads, is measured, or closes its engine (restarted)")
@pytest.mark.parametrize("phase", HANGS)
async def test_a_server_that_hangs_beside_its_steps_ends(stack: RowStack, figures: Figures, phase: str) -> None:
    victim, _ = [await stack.server() for _ in range(2)]
    await stack.aggregator()
    hung = {"SYNTHETIC__DIMENSIONS": str(DIMENSIONS), "GRPC__BIND": victim.address, **HANGS[phase]}
    sick = synthetic(
        stack.folder / "sick.log", **hung, CONSTANTS=json.dumps({"modelserver.watch:TIMEOUTS_S": {phase: 5}})
    )
    async with stack.under_load():
        async with stack.fault():
            victim.kill()
            sick.launch()
            try:
                await until(lambda: sick.exit_code is not None)
            finally:
                sick.kill()
            await asyncio.to_thread(victim.start)
        await stack.answers(1500)
        assert metrics(victim.metrics_address).value("tokenbatch_engine_queries_total") > 10
    verdict = figures.take(await stack.verdict())
    assert sick.exit_code == 1
    assert f"{phase} takes longer than 5 s" in (stack.folder / "sick.log").read_text(encoding="utf-8")
    assert verdict.problems == ()


@asynccontextmanager
async def restarting(servers: list[ModelServer]) -> AsyncGenerator[None]:
    """Model servers that end are started again, as Kubernetes would."""

    async def watch() -> None:
        while True:
            for server in servers:
                if server.exit_code is not None:
                    with contextlib.suppress(StackError):  # it ended while it started
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
async def test_a_stuck_record_pauses_only_its_partition(stack: RowStack, figures: Figures) -> None:
    server = await stack.server()
    away = ModelServer(
        stack.folder / "away.log",
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
    stack.servers.append(away)
    aggregator = await stack.aggregator(
        settings={
            "MODELS": json.dumps(models),
            "CONSTANTS": '{"aggregator.settings.aggregator:ClientSettings.max_commit_span": 500}',
        }
    )

    def for_the_other(number: int, request_id: str) -> Planned:
        text = f"wait for it {number}"
        return Planned(query(text, request_id, model="away"), Intent(text))

    async with stack.fault_under_load(200):
        await stack.load.send(1, for_the_other, partition=0)
        await stack.answers(5000)
        shown = metrics(aggregator.metrics_address)
        await asyncio.to_thread(away.start)
    await stack.passes(figures)
    assert shown.value("tokenbatch_consumer_paused") == 1
    assert shown.value("tokenbatch_consumer_paused", partition="0") == 1
