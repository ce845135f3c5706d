"""Whether a running system meets a latency target that its model server can meet with small batches only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import grpc
import numpy as np

from aggregator.errors import ungrouped
from loadtest.clients.messages import NO_WISHES, request
from loadtest.lab.validate import live
from loadtest.lab.validate.relay import Relay, Sent
from loadtest.plots import draw_column
from loadtest.questions import bundled_questions
from loadtest.section import Plot, Series
from loadtest.simulate.clock import find
from loadtest.stack.errors import StackError
from loadtest.stack.ports import free_ports
from protos.embedding.v1 import embedding_pb2_grpc

_CALLERS = 6
_QUERIES_A_CALL = 16
_TIMEOUT_S = 120.0
WINDOW_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept:
    """The batches of one run at saturation, in the order of their answers, times in seconds from its start.

    `target_s`: from sending a batch to its answer; `saturation_point` is where the budget begins, in tokens.
    """

    target_s: float
    saturation_point: int
    sent: tuple[Sent, ...]

    def p95_s(self) -> list[tuple[float, float]]:
        """(end of a window, p95 of the times of the batches answered in it); windows without any are left out."""
        answered = np.array([one.answered_s for one in self.sent])
        took = np.array([one.took_s for one in self.sent])
        windows = (answered // WINDOW_S).astype(np.int64)
        return [
            ((window + 1) * WINDOW_S, float(np.percentile(took[windows == window], 95)))
            for window in np.unique(windows).tolist()
        ]

    @property
    def inside_from_s(self) -> float | None:
        """The start of the windows that are all inside the target up to the end; None when the last one is not."""
        since_s = None
        for end_s, p95_s in self.p95_s():
            since_s = None if p95_s > self.target_s else end_s - WINDOW_S if since_s is None else since_s
        return since_s

    @property
    def inside(self) -> float:
        """The share of windows that are inside the target, from the first such one on; 0 when there is none."""
        held = [p95_s <= self.target_s for _, p95_s in self.p95_s()]
        if True not in held:
            return 0.0
        after = held[held.index(True) :]
        return sum(after) / len(after)

    def plot(self) -> str:
        """Batch times against the target, and the budget below them, as SVG."""
        times = Series("p95 of each second", [(end_s, 1e3 * p95_s) for end_s, p95_s in self.p95_s()])
        budget = Series("token budget", [(one.answered_s, one.token_budget) for one in self.sent], steps=True)
        title = "time of a batch, MiniLM on a CPU, at saturation"
        return draw_column(
            [
                Plot(title, "seconds", "ms", [times], limit=("latency target", 1e3 * self.target_s)),
                Plot(
                    "",
                    "seconds",
                    "tokens",
                    [budget],
                    limit=("saturation point", self.saturation_point),
                    y_max=1.2 * self.saturation_point,
                ),
            ],
            "sla",
        )


def measure(folder: Path, share: float, seconds: float) -> Kept:
    """Set `share` of a step at the saturation point as the target, and load the system. Raises StackError.

    With a share below 1 not even an idle engine could meet it with batches as large as the saturation point.
    """
    with live.model_server(folder, {}) as (server, profile):
        curve = find(str(profile))
        target_s = share * curve.time_s(curve.saturation_point)
        sent = asyncio.run(_run(folder, server.address, server.model, target_s, seconds))
    return Kept(target_s, curve.saturation_point, tuple(sent))


async def _run(folder: Path, server: str, model: str, target_s: float, seconds: float) -> Sequence[Sent]:
    (port,) = free_ports(1)
    async with grpc.aio.insecure_channel(server) as channel:
        relay, listener = Relay(channel), grpc.aio.server()
        listener.add_generic_rpc_handlers((relay,))
        listener.add_insecure_port(f"localhost:{port}")
        await listener.start()
        told = {"SLA__LATENCY_S": str(target_s)}
        try:
            async with _in_thread(live.aggregator(folder, model, f"localhost:{port}", told)) as front:
                relay.sent.clear()  # what it tried the server with
                began_s = time.monotonic()
                await _load(front.address, seconds)
        finally:
            await listener.stop(None)
    return [replace(one, answered_s=one.answered_s - began_s) for one in relay.sent]


@asynccontextmanager
async def _in_thread(context: AbstractContextManager[T]) -> AsyncGenerator[T]:
    """A context that is entered and left beside this loop, whose answers it waits for."""
    entered = await asyncio.to_thread(context.__enter__)
    try:
        yield entered
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def _load(address: str, seconds: float) -> None:
    """More queries in flight than fit two batches, all the time. Raises StackError when a call fails."""
    questions = bundled_questions()
    groups = [questions[at : at + _QUERIES_A_CALL] for at in range(0, len(questions), _QUERIES_A_CALL)]
    until_s = time.monotonic() + seconds
    try:
        with ungrouped(grpc.aio.AioRpcError):
            async with grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as tasks:
                stub = embedding_pb2_grpc.EmbeddingsStub(channel)

                async def call(number: int) -> None:
                    while time.monotonic() < until_s:
                        texts = groups[number % len(groups)]
                        await stub.Embed(request(texts, str(number), NO_WISHES), timeout=_TIMEOUT_S)
                        number += _CALLERS

                for number in range(_CALLERS):
                    tasks.create_task(call(number))
    except grpc.aio.AioRpcError as error:
        raise StackError(f"a call failed: {error!r}") from error
