"""The aggregator's CPU time per unary call, over that of a bare server of the same library with the same messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np

from loadtest.clients import grpc, openai
from loadtest.clients.grpc import GrpcRun
from loadtest.clients.openai import OpenAIRun
from loadtest.lab.bench.figures import Figure
from loadtest.lab.bench.programs.echo import DIMENSIONS
from loadtest.lab.bench.setting import InstantModelServers, Plan, texts
from loadtest.lab.bench.turns import Medians, in_turns
from loadtest.lab.processor import cpu_s
from loadtest.stack.errors import StackError
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.part import Part, Program
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
    echo = Program(f"loadtest.lab.bench.programs.{program}", [str(port)], plan.folder / f"{program}.log", port)
    engine = InstantModelServers(plan, 1, _STEP_S)
    front = without_kafka(plan.folder / "aggregator.log", model=MODEL, servers=engine.addresses)
    with engine, echo, front as aggregator:
        address = aggregator.address if send is _by_grpc else aggregator.http_address
        parts: dict[str, tuple[Part, str]] = {"echo": (echo, f"localhost:{port}"), "aggregator": (aggregator, address)}
        for part, target in parts.values():
            _cpu_us(part.pid, target, send, _WARM_UP)
        sides = {name: partial(_turn, part.pid, target, send, calls) for name, (part, target) in parts.items()}
        found = in_turns(bench, plan.repeats, sides, lambda turn: f"{turn[0]:.0f} µs")
    notes = f"{calls} calls of one question, {_CALLERS} callers, {DIMENSIONS} floats back, all threads"
    medians = Medians(bench, plan.repeats, notes, {"aggregator_over_echo": wanted})
    (echo_us, _), (aggregator_us, client_us) = (zip(*turns, strict=True) for turns in found.values())
    return [
        medians.of("echo_cpu", "us/call", echo_us),
        medians.of("aggregator_cpu", "us/call", aggregator_us),
        medians.of("client_cpu", "us/call", client_us),
        medians.ratio("aggregator_over_echo", aggregator_us, echo_us),
    ]


async def _by_grpc(texts: list[str], tally: Tally, target: str) -> None:
    await grpc.run(texts, tally, GrpcRun(target, _CALLERS), lambda: None)


async def _over_http(texts: list[str], tally: Tally, target: str) -> None:
    await openai.run(texts, tally, OpenAIRun(f"http://{target}/v1/embeddings", MODEL, _CALLERS))


def _turn(pid: int, target: str, send: Send, calls: int, _: int) -> tuple[float, float]:
    return _cpu_us(pid, target, send, calls)


def _cpu_us(pid: int, target: str, send: Send, calls: int) -> tuple[float, float]:
    """CPU time per call of the server and of this client, in µs."""
    tally = Tally(np.arange(calls, dtype=np.int64))
    before_s, client_before_s = cpu_s(pid), time.process_time()
    asyncio.run(send(texts(calls), tally, target))
    after_s, client_after_s = cpu_s(pid), time.process_time()
    if tally.errors:
        raise StackError(f"calls to {target} failed: {dict(tally.errors)}")
    return (after_s - before_s) / calls * 1e6, (client_after_s - client_before_s) / calls * 1e6
