"""Measure batches through the whole server, to find the size above which a backlog gains nothing.

The saturation point is that of the engine alone. A batch also costs its message, its decoding and the delivery of its
vectors, on cores that the engine may need too; a larger batch spreads that over more tokens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import median

import grpc
import numpy as np

from modelserver.scheduler.step_queue import StepQueue
from modelserver.service.description import Description
from modelserver.service.servicer import ModelServerServicer, Serving
from modelserver.wings.profile.measure import Profile, backlog_tokens, batch_sizes, production_mix
from protos.modelserver.v1 import modelserver_pb2 as pb
from protos.modelserver.v1 import modelserver_pb2_grpc as pb_grpc

_log = logging.getLogger(__name__)

_SEED = 20_240_502
_ROUNDS = 3  # each takes every size once, as the machine may slow down meanwhile
_BATCHES = 4
"""Batches of one size in a round; two are in flight at a time, as an aggregator sends them."""
_TIMEOUT_S = 60.0  # a full batch on a slow CPU takes seconds


async def with_backlog(
    profile: Profile, queue: StepQueue, description: Description, clock: Callable[[], float] = time.perf_counter
) -> Profile:
    """The profile with its `backlog_tokens`, measured before any client is served from this queue.

    If a batch fails, the profile is returned unchanged: batches are then as large as the saturation point.
    """
    facts = description.facts
    sizes = batch_sizes(profile.curve.saturation_point, facts.step_token_capacity)
    rng = np.random.default_rng(_SEED)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    _log.info("measuring batches through the server", extra={"stage": "profile", "sizes": len(sizes)})
    try:
        async with _server(queue, description) as stub:
            for _ in range(_ROUNDS):
                for size in sizes:
                    lot = [_request(size, description, rng) for _ in range(_BATCHES)]
                    times[size].append(await _batch_s(stub, lot, clock))
    except grpc.aio.AioRpcError as error:
        _log.warning("the throughput of large batches cannot be measured", extra={"error": error.details()})
        return profile
    found = backlog_tokens([(size, median(times[size])) for size in sizes])
    _log.info("measured batches through the server", extra={"stage": "profile", "backlog_tokens": found})
    return replace(profile, curve=replace(profile.curve, backlog_tokens=found))


async def _batch_s(
    stub: pb_grpc.ModelServerAsyncStub, requests: Sequence[pb.EmbedBatchRequest], clock: Callable[[], float]
) -> float:
    """Seconds a batch in steady state, with two of them out: without the first, which finds an idle server."""
    places = asyncio.Semaphore(2)
    ended_s: list[float] = []

    async def send(request: pb.EmbedBatchRequest) -> None:
        async with places:
            await stub.EmbedBatch(request, timeout=_TIMEOUT_S)
            ended_s.append(clock())

    await asyncio.gather(*map(send, requests))
    return max(1e-9, (ended_s[-1] - ended_s[0]) / (len(ended_s) - 1))


def _request(size: int, description: Description, rng: np.random.Generator) -> pb.EmbedBatchRequest:
    ids, lengths = production_mix(size, description.facts, rng)
    served = description.message
    return pb.EmbedBatchRequest(
        model=served.model,
        model_revision=served.model_revision,
        token_ids=ids.astype("<i4").tobytes(),
        lengths=lengths.astype("<i4").tobytes(),
        max_step_tokens=size,
    )


@asynccontextmanager
async def _server(queue: StepQueue, description: Description) -> AsyncGenerator[pb_grpc.ModelServerAsyncStub]:
    """The service on a second port, on this machine only, while the real one still reports that it is not ready."""
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=unlimited)
    servicer = ModelServerServicer(Serving(queue, description), {}, lambda *_: None)
    pb_grpc.add_ModelServerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=unlimited) as channel:
            yield pb_grpc.ModelServerStub(channel)
    finally:
        await server.stop(None)
