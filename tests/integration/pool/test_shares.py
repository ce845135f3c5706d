"""A new server has traffic soon, and each model only from its own servers."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from loadtest.stack.service import DEFAULT_MODEL_NAME, ModelServer
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.integration.pool.conftest import Pool, more, traffic
from tests.support.processes import NewServer
from tests.support.scrape import metrics
from tests.support.until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

JOINED = "joined a model server"
SOON_S = 10.0
"""Half of it where the machine does nothing else."""


def embedded(server: ModelServer) -> float:
    """Queries that its engine has embedded, probes included."""
    return metrics(server.metrics_address).value("tokenbatch_engine_queries_total")


async def test_a_new_server_that_a_name_resolves_to_has_traffic_within_seconds(
    new_server: NewServer, pool: Pool
) -> None:
    old, new = new_server(), new_server()
    old.start()
    aggregator = pool(old.address, f"dns://{new.address.replace('localhost', '127.0.0.1')}")
    async with traffic(aggregator.address) as seen:
        await asyncio.to_thread(new.start)
        await until(lambda: embedded(new) > 10, SOON_S)
        await more(seen)
    seen.check()


async def test_calls_of_a_model_without_servers_wait_for_one_and_hurt_no_other(
    new_server: NewServer, pool: Pool
) -> None:
    here, absent = new_server(), new_server(MODEL__NAME="absent")
    here.start()
    aggregator = pool(
        models=[
            {"name": DEFAULT_MODEL_NAME, "aliases": ["minilm"], "servers": [here.address]},
            {"name": "absent", "servers": [absent.address]},
        ]
    )
    async with traffic(aggregator.address, "minilm") as seen, grpc.aio.insecure_channel(aggregator.address) as channel:
        stub = pb_grpc.EmbeddingsStub(channel)
        request = pb.EmbedRequest(model="absent", inputs=[pb.Input(text="question")])
        waiting = [asyncio.ensure_future(stub.Embed(request, timeout=120)) for _ in range(20)]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Embed(request, timeout=1)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await more(seen)
        assert not any(call.done() for call in waiting)
        await asyncio.to_thread(absent.start)
        await asyncio.gather(*waiting)
        await aggregator.told(JOINED, absent.address, SOON_S)
        async with traffic(aggregator.address, "absent") as others:
            await more(others)
            await more(seen)
        others.check()
    seen.check()
