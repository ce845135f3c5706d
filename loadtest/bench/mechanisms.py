"""What two mechanisms save of the aggregator's CPU time: the second tokenizer (ADR 1), and gathering calls (ADR 13)."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from loadtest.bench.aggregator_cpu import cpu_us
from loadtest.bench.figures import Figure
from loadtest.bench.instant_modelserver import MODEL
from loadtest.bench.setting import Plan, Program, backlog
from loadtest.bench.unary_cpu import CALLERS
from loadtest.clients import grpc
from loadtest.clients.grpc import GrpcRun
from loadtest.options import unique
from loadtest.processor import cpu_s
from loadtest.questions import bundled_questions
from loadtest.screen import ERRORS
from loadtest.stack.errors import StackError
from loadtest.stack.ports import free_ports
from loadtest.stack.service import Aggregator, without_kafka
from loadtest.tally import Tally

NAME = "mechanisms"
_CALLS, _WARM_UP = 10_000, 2_000
_STEPS_S = (0.01, 0.03)
"""Of the model server: the longer they are, the more calls can be gathered."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """CPU time of the aggregator per call in µs, and how long calls took."""

    cpu_us: float
    p50_s: float
    p99_s: float


def measure(plan: Plan) -> list[Figure]:
    """Each with and without, in turns."""
    figures = _tokenizer(plan)
    for step_s in _STEPS_S:
        figures += _gathering(plan, step_s)
    return figures


def _tokenizer(plan: Plan) -> list[Figure]:
    """From Kafka to Kafka, as P4 has it."""
    with_it: list[float] = []
    without: list[float] = []
    with backlog(plan) as setting, setting.instant_modelserver() as server:
        for turn in range(plan.repeats):
            for found, fast in ((with_it, "true"), (without, "false")):
                replies = setting.replies_topic()
                aggregator = setting.aggregator(server, replies, {"TOKENIZER__FAST": fast})
                found.append(cpu_us(setting, aggregator, replies))
            ERRORS.print(f"tokenizer {turn + 1} of {plan.repeats}: {with_it[-1]:.1f} µs, without {without[-1]:.1f} µs")
    about = plan.repeats, f"{plan.queries} unique queries, {plan.token_budget} tokens a batch at most, all threads"
    return _figures("tokenizer_cpu", "us/query", with_it, without, about)


def _gathering(plan: Plan, step_s: float) -> list[Figure]:
    """By unary calls, as the bench `unary` has it."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    told = ["--port", str(port), "--token-budget", str(plan.token_budget), "--step-s", str(step_s)]
    engine = Program("loadtest.bench.instant_modelserver", told, plan.folder / "instant_modelserver.log", port)
    servers = [f"localhost:{port}"]
    sides: Mapping[str, Aggregator] = {
        "gathering": without_kafka(plan.folder / "aggregator.log", model=MODEL, servers=servers),
        "without": without_kafka(
            plan.folder / "without_gathering.log",
            model=MODEL,
            servers=servers,
            module="loadtest.bench.without_gathering",
        ),
    }
    calls = min(_CALLS, plan.queries)
    found: dict[str, list[_Turn]] = {name: [] for name in sides}
    with engine, ExitStack() as stack:
        for side in sides.values():
            stack.enter_context(side)
            _calls(side, _WARM_UP)
        for turn in range(plan.repeats):
            for name, side in sides.items():
                found[name].append(_calls(side, calls))
            ERRORS.print(f"gathering {turn + 1} of {plan.repeats}: {[found[name][-1] for name in sides]}")
    on, off = found.values()
    what = f"gathering_{1e3 * step_s:g}ms"
    about = plan.repeats, f"{calls} calls of one question, {CALLERS} callers, steps of {1e3 * step_s:g} ms, all threads"
    return [
        *_figures(f"{what}_cpu", "us/call", [one.cpu_us for one in on], [one.cpu_us for one in off], about),
        *_figures(f"{what}_p50", "ms", [1e3 * one.p50_s for one in on], [1e3 * one.p50_s for one in off], about),
        *_figures(f"{what}_p99", "ms", [1e3 * one.p99_s for one in on], [1e3 * one.p99_s for one in off], about),
    ]


def _calls(side: Aggregator, count: int) -> _Turn:
    questions = bundled_questions()
    texts = unique([questions[number % len(questions)] for number in range(count)])
    tally = Tally(np.arange(count, dtype=np.int64), keep_embeddings=False)
    before_s = cpu_s(side.pid)
    asyncio.run(grpc.run(texts, tally, GrpcRun(side.address, CALLERS), lambda: None))
    used_s = cpu_s(side.pid) - before_s
    if tally.errors:
        raise StackError(f"calls to {side.address} failed: {dict(tally.errors)}")
    latency_s = tally.summary().latency_s
    return _Turn(used_s / count * 1e6, latency_s["p50"], latency_s["p99"])


def _figures(what: str, unit: str, on: Sequence[float], off: Sequence[float], about: tuple[int, str]) -> list[Figure]:
    """`about`: the repeats, and notes."""
    ratio = statistics.median(without / with_it for with_it, without in zip(on, off, strict=True))
    return [
        Figure(NAME, what, statistics.median(on), unit, *about),
        Figure(NAME, f"{what}_without", statistics.median(off), unit, *about),
        Figure(NAME, f"{what}_without_over_with", ratio, "ratio", *about),
    ]
