"""P5: what a call takes beyond the engine's own time when it is the only one; vLLM's own server beside it.

An answer passes two gRPC calls, one to the aggregator and one to the model server, so a call of a server that answers
at once is timed too: twice that is the least that there could be.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

import grpc

from loadtest.bench.figures import Figure
from loadtest.bench.setting import Plan, Program, texts
from loadtest.bench.sides import Load, both_sides
from loadtest.clients.messages import NO_WISHES, request
from loadtest.screen import ERRORS
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
    ours: list[_Times] = []
    vllm_s: list[float] = []
    bare_s: list[float] = []
    (port,) = free_ports(1)
    echo = Program("loadtest.bench.programs.echo", ["--port", str(port)], plan.folder / "echo.log", port)
    with both_sides(plan) as (own, other), echo:
        asyncio.run(_one_by_one(own.address, _WARM_UP))
        other.turn(Load(1), _WARM_UP)
        for turn in range(plan.repeats):
            ours.append(asyncio.run(_one_by_one(own.address, count)))
            vllm_s.append(other.turn(Load(1), count).p50_s)
            bare_s.append(asyncio.run(_one_by_one(f"localhost:{port}", count, pause_s=ours[-1].engine_s)).call_s)
            ERRORS.print(
                f"P5 {turn + 1} of {plan.repeats}: {ours[-1]}, vLLM's server {vllm_s[-1] * 1e3:.2f} ms, "
                f"a bare call {bare_s[-1] * 1e3:.2f} ms"
            )
    notes = f"1 in flight, {count} unique questions a turn, MiniLM {own.dtype}; engine: the step as its answer tells it"

    def ms(figure: str, values_s: list[float]) -> Figure:
        return Figure(NAME, figure, statistics.median(values_s) * 1e3, "ms", plan.repeats, notes)

    over = statistics.median(each.rest_s / (2.0 * bare) for each, bare in zip(ours, bare_s, strict=True))
    return [
        ms("p50", [each.call_s for each in ours]),
        ms("engine_p50", [each.engine_s for each in ours]),
        ms("p50_over_engine", [each.rest_s for each in ours]),
        ms("bare_call_p50", bare_s),
        Figure(NAME, "over_two_bare_calls", over, "ratio", plan.repeats, notes, "≤ 1.25"),
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
            answer = await stub.Embed(request([text], str(number), NO_WISHES), timeout=_TIMEOUT_S)
            calls_s.append(time.perf_counter() - began_s)
            engine_s.append(answer.timings.inference.ToTimedelta().total_seconds())
    rest_s = [call - engine for call, engine in zip(calls_s, engine_s, strict=True)]
    return _Times(statistics.median(calls_s), statistics.median(engine_s), statistics.median(rest_s))
