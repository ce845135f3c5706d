"""A model that scales to zero: without servers its aggregator is ready, and a call waits for the first one."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from loadtest.stack.ports import free_ports
from loadtest.stack.service import DEFAULT_MODEL_NAME
from protos.aggregator.v1 import aggregator_pb2, aggregator_pb2_grpc
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.integration.pool.conftest import Pool
from tests.support.processes import NewServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_a_call_asks_for_a_first_server_and_waits_for_it(new_server: NewServer, pool: Pool) -> None:
    server, (port,) = new_server(), free_ports(1)
    model = {"name": DEFAULT_MODEL_NAME, "servers": [server.address], "scales_to_zero": True}
    aggregator = pool(models=[model], DEMAND__BIND=f"127.0.0.1:{port}")  # once it is ready
    async with (
        grpc.aio.insecure_channel(aggregator.address) as channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as scaler,
    ):
        request = pb.EmbedRequest(inputs=[pb.Input(text="question")])
        call = asyncio.ensure_future(pb_grpc.EmbeddingsStub(channel).Embed(request, timeout=60))
        async with asyncio.timeout(30):
            while True:
                demand = await aggregator_pb2_grpc.DemandStub(scaler).GetDemand(aggregator_pb2.GetDemandRequest())
                if demand.models[0].pending_requests == 1 and demand.models[0].other_tokens_per_s > 0:
                    break
                await asyncio.sleep(0.05)
        await asyncio.sleep(3.0)  # longer than a call waits for the next server of a model that is never without one
        assert not call.done()
        await asyncio.to_thread(server.start)
        assert len((await call).embeddings[0].embedding) == 384 * 4
