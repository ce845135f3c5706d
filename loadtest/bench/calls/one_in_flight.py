"""P5: what a call takes beyond the engine's own time when it is the only one; vLLM's own server beside it.

An answer passes two gRPC calls, one to the aggregator and one to the model server, so a call of a server that answers
at once is timed too: twice that is the least that there could be.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import grpc
from tokenbatch_client import requests

from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan, texts
from loadtest.bench.sides import Load, both_sides
from loadtest.bench.turns import Medians, in_turns
from loadtest.stack.part import Program
from loadtest.stack.ports import free_ports
from protos.embedding.v1 import embedding_pb2_grpc

NAME = "P5"
_QUERIES = 400
_WARM_UP = 40
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Times:
    """Medians over one turn's calls, in seconds: the whole call, the engine's step in it, and what is left."""

    call_s: float
    engine_s: float
    rest_s: float


def measure(plan: Plan) -> list[Figure]:
    count = min(_QUERIES, plan.queries)
    (port,) = free_ports(1)
    echo = Program("loadtest.bench.programs.echo", [str(port)], plan.folder / "echo.log", port)
    with both_sides(plan) as (own, other), echo:
        asyncio.run(_one_by_one(own.address, _WARM_UP))
        other.turn(Load(1), _WARM_UP)

        def turn(_: int) -> tuple[_Times, float, float]:
            ours, vllm_s = asyncio.run(_one_by_one(own.address, count)), other.turn(Load(1), count).p50_s
            bare = asyncio.run(_one_by_one(f"localhost:{port}", count, pause_s=ours.engine_s))
            return ours, vllm_s, bare.call_s

        turns = in_turns(NAME, plan.repeats, {"ours, vLLM's server, a bare call (s)": turn}, str)
    notes = f"1 in flight, {count} unique questions a turn, MiniLM {own.dtype}; engine: the step as its answer tells it"
    medians = Medians(NAME, plan.repeats, notes, {"over_two_bare_calls": "≤ 1.25"})
    ours, vllm_s, bare_s = zip(*next(iter(turns.values())), strict=True)

    def ms(figure: str, values_s: Iterable[float]) -> Figure:
        return medians.of(figure, "ms", (1e3 * value_s for value_s in values_s))

    return [
        ms("p50", (each.call_s for each in ours)),
        ms("engine_p50", (each.engine_s for each in ours)),
        ms("p50_over_engine", (each.rest_s for each in ours)),
        ms("bare_call_p50", bare_s),
        medians.ratio("over_two_bare_calls", (each.rest_s / 2.0 for each in ours), bare_s),
        ms("vllm_p50", vllm_s),
    ]


async def _one_by_one(target: str, count: int, pause_s: float = 0.0) -> _Times:
    """`pause_s` before each call: what answers at once is to find the machine as idle as an engine's step leaves it."""
    calls_s: list[float] = []
    engine_s: list[float] = []
    async with grpc.aio.insecure_channel(target) as channel:
        stub = embedding_pb2_grpc.EmbeddingsStub(channel)
        await channel.channel_ready()
        for number, text in enumerate(texts(count)):
            await asyncio.sleep(pause_s)
            began_s = time.perf_counter()
            answer = await stub.Embed(requests.embed([text], {}, str(number)), timeout=_TIMEOUT_S)
            calls_s.append(time.perf_counter() - began_s)
            engine_s.append(answer.timings.inference.ToTimedelta().total_seconds())
    rest_s = [call - engine for call, engine in zip(calls_s, engine_s, strict=True)]
    return _Times(statistics.median(calls_s), statistics.median(engine_s), statistics.median(rest_s))
