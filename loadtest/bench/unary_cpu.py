"""The aggregator's CPU time per unary call, over that of a bare server of the same library with the same messages."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from loadtest.bench.figures import Figure
from loadtest.bench.programs.echo import DIMENSIONS
from loadtest.bench.programs.instant_modelserver import MODEL
from loadtest.bench.setting import InstantModelServers, Plan, Program, texts
from loadtest.clients import grpc, openai
from loadtest.clients.grpc import GrpcRun
from loadtest.clients.openai import OpenAIRun
from loadtest.processor import cpu_s
from loadtest.screen import ERRORS
from loadtest.stack.errors import StackError
from loadtest.stack.part import Part
from loadtest.stack.ports import free_ports
from loadtest.stack.service import without_kafka
from loadtest.tally import Tally

NAME = "unary"
_CALLERS = 64
_WARM_UP = 2_000
_CALLS = 20_000
_STEP_S = 0.03
"""As MiniLM in bfloat16 takes on a CPU, 3 ms and 31 µs a token, for a question of each; without it calls go alone."""

Send = Callable[[list[str], Tally, str], Coroutine[Any, Any, None]]


def measure(plan: Plan) -> list[Figure]:
    return _compare(plan, NAME, "echo", _by_grpc, "≤ 1.4")


def measure_http(plan: Plan, bench: str) -> list[Figure]:
    """Over HTTP, as figures of `bench`."""
    return _compare(plan, bench, "http_echo", _over_http, "≤ 1.5")


def _compare(plan: Plan, bench: str, program: str, send: Send, wanted: str) -> list[Figure]:
    """Both in turns, each a process that lasts; one query a call, 64 callers, steps that take their time."""
    calls = min(_CALLS, plan.queries)
    (port,) = free_ports(1)
    echo = Program(f"loadtest.bench.programs.{program}", ["--port", str(port)], plan.folder / f"{program}.log", port)
    engine = InstantModelServers(plan, 1, _STEP_S)
    found: dict[str, list[tuple[float, float]]] = {"echo": [], "aggregator": []}
    front = without_kafka(plan.folder / "aggregator.log", model=MODEL, servers=engine.addresses)
    with engine, echo, front as aggregator:
        address = aggregator.address if send is _by_grpc else aggregator.http_address
        sides: dict[str, tuple[Part, str]] = {"echo": (echo, f"localhost:{port}"), "aggregator": (aggregator, address)}
        for part, target in sides.values():
            _cpu_us(part.pid, target, send, _WARM_UP)
        for turn in range(plan.repeats):
            for name, (part, target) in sides.items():
                found[name].append(_cpu_us(part.pid, target, send, calls))
            ERRORS.print(f"{bench} {turn + 1} of {plan.repeats}: " + _said(found))
    ratio = statistics.median(own[0] / bare[0] for own, bare in zip(found["aggregator"], found["echo"], strict=True))
    notes = f"{calls} calls of one question, {_CALLERS} callers, {DIMENSIONS} floats back, all threads"

    def median(name: str, place: int) -> float:
        return statistics.median(each[place] for each in found[name])

    return [
        Figure(bench, "echo_cpu", median("echo", 0), "us/call", plan.repeats, notes),
        Figure(bench, "aggregator_cpu", median("aggregator", 0), "us/call", plan.repeats, notes),
        Figure(bench, "client_cpu", median("aggregator", 1), "us/call", plan.repeats, notes),
        Figure(bench, "aggregator_over_echo", ratio, "ratio", plan.repeats, notes, wanted),
    ]


async def _by_grpc(texts: list[str], tally: Tally, target: str) -> None:
    await grpc.run(texts, tally, GrpcRun(target, _CALLERS), lambda: None)


async def _over_http(texts: list[str], tally: Tally, target: str) -> None:
    await openai.run(texts, tally, OpenAIRun(f"http://{target}/v1/embeddings", MODEL, _CALLERS))


def _cpu_us(pid: int, target: str, send: Send, calls: int) -> tuple[float, float]:
    """CPU time per call of the server and of this client, in µs."""
    tally = Tally(np.arange(calls, dtype=np.int64))
    before_s, client_before_s = cpu_s(pid), time.process_time()
    asyncio.run(send(texts(calls), tally, target))
    after_s, client_after_s = cpu_s(pid), time.process_time()
    if tally.errors:
        raise StackError(f"calls to {target} failed: {dict(tally.errors)}")
    return (after_s - before_s) / calls * 1e6, (client_after_s - client_before_s) / calls * 1e6


def _said(found: dict[str, list[tuple[float, float]]]) -> str:
    return ", ".join(f"{name} {turns[-1][0]:.0f} µs" for name, turns in found.items())
