"""Callers whose channel tries again, as docs/clients.md says, see nothing of aggregators that stop or crash."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import grpc.aio
import pytest

from loadtest.stack.ports import free_ports
from loadtest.stack.service import Aggregator, ModelServer, without_kafka
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.clients.snippets import read
from tests.support.processes import synthetic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SERVICE_CONFIG = read().files["channel/service_config.json"]
CALLERS, PER_S, STOPS = 4, 50, 2


async def test_aggregators_that_stop_or_crash_under_load_cost_no_answer(tmp_path: Path) -> None:
    with synthetic(tmp_path / "server.log", SYNTHETIC__FIXED_S="0.05") as server:
        fronts = [front(server, port, tmp_path) for port in free_ports(2)]
        try:
            for each in fronts:
                await asyncio.to_thread(each.start, timeout_s=60.0)
            ended: Counter[str] = Counter()
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for number in range(CALLERS):
                    tasks.create_task(call([each.address for each in fronts], number, stop, ended))
                for number in range(STOPS):
                    await asyncio.sleep(1.0)
                    each = fronts[number % 2]
                    await asyncio.to_thread(each.stop if number < STOPS // 2 else each.kill)
                    await asyncio.to_thread(each.start, timeout_s=60.0)
                stop.set()
        finally:
            for each in fronts:
                each.stop()
    assert set(ended) == {"OK"}, ended
    assert ended["OK"] > CALLERS * PER_S // 2


def front(server: ModelServer, port: int, folder: Path) -> Aggregator:
    settings = {"GRPC__BIND": f"127.0.0.1:{port}"}
    made = without_kafka(folder / f"{port}.log", model=server.model, servers=[server.address], settings=settings)
    made.address = f"127.0.0.1:{port}"
    return made


async def call(addresses: list[str], caller: int, stop: asyncio.Event, ended: Counter[str]) -> None:
    """Call until `stop`, PER_S times a second, whichever aggregator is there; count how calls end."""
    options = [("grpc.service_config", SERVICE_CONFIG), ("caller", caller)]  # a channel of its own
    async with grpc.aio.insecure_channel(f"ipv4:{','.join(addresses)}", options=options) as channel:
        stub = pb_grpc.EmbeddingsStub(channel)

        async def one(number: int) -> None:
            try:
                await stub.Embed(
                    pb.EmbedRequest(
                        request_id=f"{caller}-{number}", inputs=[pb.Input(text=text) for text in [f"question {number}"]]
                    ),
                    timeout=20.0,
                )
                ended["OK"] += 1
            except grpc.aio.AioRpcError as error:
                ended[f"{error.code().name}: {error.details()}"] += 1

        async with asyncio.TaskGroup() as tasks:
            number = 0
            while not stop.is_set():
                tasks.create_task(one(number))
                number += 1
                await asyncio.sleep(1.0 / PER_S)
