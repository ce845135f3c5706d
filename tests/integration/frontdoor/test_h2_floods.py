"""Floods of HTTP/2 frames over several connections: the aggregator beside a server of the same library."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection

from protos.embedding.v1 import embedding_pb2 as pb
from tests.integration.frontdoor.h2_floods import EMBED, KINDS
from tests.support.listening import ask, listening

SECONDS = 4.0
MARGIN_S = 0.3
"""Of the processor: other work on the machine costs none of it."""


async def _embed(request: pb.EmbedRequest, context: object) -> pb.EmbedResponse:
    del request, context
    return pb.EmbedResponse()


@asynccontextmanager
async def plain_server() -> AsyncGenerator[str]:
    """The library's own server, with a method that does nothing, and with its usual options; its address."""
    server = grpc.aio.server()
    handlers = {"Embed": grpc.unary_unary_rpc_method_handler(_embed, pb.EmbedRequest.FromString, _serialize)}
    service = pb.DESCRIPTOR.services_by_name["Embeddings"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    reflection.enable_server_reflection((service,), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def _serialize(response: pb.EmbedResponse) -> bytes:
    return response.SerializeToString()


async def neighbour(address: str, kind: str, connections: int) -> tuple[float, Counter[str]]:
    """How long this process computes until a call beside a flood is answered, p99 (s), and how many calls ended how.

    The servers are in this process.
    """
    told = (address, kind, str(connections), str(SECONDS))
    flood = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.frontdoor.h2_floods", *told, stdout=asyncio.subprocess.DEVNULL
    )
    took_s: list[float] = []
    found = Counter[str]()
    local = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, local) as kept:

        async def call(fresh: bool) -> None:
            began_s = time.process_time()
            channel = grpc.aio.insecure_channel(address, local) if fresh else kept
            embed = channel.unary_unary(EMBED, pb.EmbedRequest.SerializeToString, pb.EmbedResponse.FromString)
            try:
                await embed(ask("rain"), timeout=30)
                found["OK"] += 1
            except grpc.aio.AioRpcError as error:
                found[error.code().name] += 1
            took_s.append(time.process_time() - began_s)
            if fresh:
                await channel.close()

        async with asyncio.TaskGroup() as calls:
            while flood.returncode is None:
                calls.create_task(call(fresh=len(took_s) % 4 == 3))
                await asyncio.sleep(0.1)
    return float(np.quantile(took_s, 0.99)), found


async def beside(kind: str, connections: int) -> None:
    async with plain_server() as address:
        control_s, _ = await neighbour(address, kind, connections)
    async with listening() as door:
        p99_s, found = await neighbour(door.address.replace("localhost", "127.0.0.1"), kind, connections)
    assert found.keys() == {"OK"}
    assert p99_s <= control_s + MARGIN_S


async def test_a_flood_of_other_methods_delays_no_call_of_ours() -> None:
    await beside("unknown method", connections=4)


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("connections", [1, 4, 40])
@pytest.mark.parametrize("kind", [*KINDS, "unread × 500"])
async def test_a_flood_costs_what_it_costs_the_library_alone(kind: str, connections: int) -> None:
    await beside(kind, connections)
