"""The front: questions a second by the number of aggregators and model servers, and the process that sets the pace.

Callers run in several processes. A run whose callers have a thread at its limit says nothing of the servers, and is
marked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from pathlib import Path
from statistics import median

from rich.table import Table

from loadtest.bench.asked import Asked, asked
from loadtest.bench.figures import Figure
from loadtest.bench.processor import LIMIT, Used, pin, threads_s
from loadtest.bench.setting import Plan
from loadtest.screen import ERRORS, plain_table
from loadtest.stack.errors import StackError
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.service import Aggregator, ModelServer, without_kafka

BENCH = "gpu-front"
_WARM_UP, _MOST = 200, 30_000  # questions
_START_S, _TURN_S = 0.2, 2.0
_CORES = 2  # of each of several model servers: processes that share a GPU stand in each other's way without
_CALLER = "loadtest.bench.programs.caller"
Parts = tuple[list[ModelServer], list[Aggregator]]
GRAPHS: Mapping[str, Mapping[str, str]] = {
    "eager": {"ENGINE__GRAPHS": "off"},
    "graphs": {"ENGINE__GRAPHS": "auto"},
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What is run: so many model servers on one GPU, aggregators, processes of callers, and callers in all."""

    engine: str
    servers: int
    aggregators: int
    processes: int
    callers: int
    door: str = "grpc"
    per_call: int = 1

    @property
    def label(self) -> str:
        return (
            f"{self.engine}, {self.servers} model servers, {self.aggregators} aggregators,"
            f" {self.callers} callers in {self.processes} processes, {self.door}"
        )


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a shape: rates and times, and cores by process; of each kind the process with the busiest thread."""

    shape: Shape
    queries_per_s: float
    p50_s: float
    p99_s: float
    used: Mapping[str, Used]

    @property
    def marked(self) -> bool:
        """Whether the load generator set the pace."""
        return self.used["callers"].at_limit


def shapes(servers: Sequence[int], aggregators: Sequence[int]) -> Iterator[Shape]:
    """Lone calls, then many callers, over both doors; more servers or aggregators one step at a time."""
    for engine in GRAPHS:
        for door in ("grpc", "http"):
            yield Shape(engine, 1, 1, 1, 1, door)
            for count in aggregators:
                yield Shape(engine, 1, count, 2 * count, 256 * count, door)
        for count in servers[1:]:
            yield Shape(engine, count, aggregators[-1], 2 * aggregators[-1], 256 * aggregators[-1])


def measure(plan: Plan, servers: Sequence[int], aggregators: Sequence[int], until_s: float) -> list[Run]:
    """Those that are begun before `until_s`."""
    wanted = list(shapes(servers, aggregators))
    found: list[Run] = []
    with ExitStack() as programs:
        callers = [
            programs.enter_context(asked([_CALLER, str(number)], plan.folder / f"caller{number}.log"))
            for number in range(max(shape.processes for shape in wanted))
        ]
        for engine, count in product(GRAPHS, servers):
            these = [each for each in wanted if (each.engine, each.servers) == (engine, count)]
            with _running(plan.folder, engine, count, max(each.aggregators for each in these)) as parts:
                timely = (each for each in these if time.monotonic() < until_s)
                found.extend(_run(each, callers, *parts, _TURN_S * plan.turn_share) for each in timely)
    return found


@contextmanager
def _running(folder: Path, engine: str, servers: int, aggregators: int) -> Generator[Parts]:
    ERRORS.print(f"==> front, {engine}, {servers} model servers")
    settings = {"ENGINE__GPU_SHARE": str(round(1 / servers, 3)), **GRAPHS[engine]}
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        engines: list[ModelServer] = []
        for number in range(servers):
            server = stack.enter_context(ModelServer(folder / f"{engine}{number}.log", settings=settings))
            if servers > 1 and len(cores) >= _CORES * servers:
                pin(server.pid, cores[_CORES * number : _CORES * (number + 1)])
            engines.append(server)
        addresses = [each.address for each in engines]
        logs = [folder / f"aggregator{number}.log" for number in range(aggregators)]
        yield engines, [stack.enter_context(without_kafka(log, model=MODEL, servers=addresses)) for log in logs]


def _run(
    shape: Shape, callers: Sequence[Asked], servers: Sequence[ModelServer], fronts: Sequence[Aggregator], seconds: float
) -> Run:
    once = _asked(shape, callers, servers, fronts, _WARM_UP)
    count = min(_MOST, max(_WARM_UP, shape.callers, round(once.queries_per_s * seconds)))
    run = _asked(shape, callers, servers, fronts, count)
    mark = " (MARKED: a thread of the callers is at its limit)" if run.marked else ""
    ERRORS.print(f"{shape.label}: {run.queries_per_s:,.0f}/s{mark}", highlight=False)
    return run


def _asked(
    shape: Shape, callers: Sequence[Asked], servers: Sequence[ModelServer], fronts: Sequence[Aggregator], count: int
) -> Run:
    """Each process of callers asks one aggregator its part of the questions."""
    fronts, callers = fronts[: shape.aggregators], callers[: shape.processes]
    addresses = [each.http_address if shape.door == "http" else each.address for each in fronts]
    told = [
        {
            "door": shape.door,
            "target": addresses[number % len(addresses)],
            "callers": max(1, shape.callers // shape.processes),
            "per_call": shape.per_call,
            "count": max(1, count // shape.processes),
            "at": time.time() + _START_S,
        }
        for number in range(shape.processes)
    ]
    parts = {"aggregators": fronts, "model servers": servers}
    before = {part.pid: threads_s(part.pid) for group in parts.values() for part in group}
    began = time.monotonic()
    with ThreadPoolExecutor(len(callers)) as pool:
        said = list(pool.map(lambda each, one: each.ask(one), callers, told))
    took_s = time.monotonic() - began - _START_S
    if failed := sum(each["failed"] for each in said):
        raise StackError(f"{failed} questions failed: {shape.label}")
    used: dict[str, Used] = {}
    for name, group in parts.items():
        each_used = (Used.between(before[part.pid], threads_s(part.pid), took_s) for part in group)
        used[name] = max(each_used, key=attrgetter("busiest"))
    used["callers"] = max((Used(each["cores"], each["busiest"]) for each in said), key=attrgetter("busiest"))
    span_s = max(each["ended"] for each in said) - min(each["began"] for each in said)
    rate = sum(each["answered"] for each in said) / span_s
    return Run(shape, rate, median(each["p50_s"] for each in said), max(each["p99_s"] for each in said), used)


def figures(runs: Sequence[Run]) -> Iterator[Figure]:
    for run in runs:
        notes = run.shape.label + (f", callers' thread above {LIMIT} cores" if run.marked else "")
        name = f"{run.shape.engine}_{run.shape.servers}x{run.shape.aggregators}_{run.shape.door}_{run.shape.callers}"
        yield Figure(BENCH, f"{name}_throughput", run.queries_per_s, "query/s", 1, notes)
        yield Figure(BENCH, f"{name}_p50", 1e3 * run.p50_s, "ms", 1, notes)
        yield Figure(BENCH, f"{name}_p99", 1e3 * run.p99_s, "ms", 1, notes)
        for part, used in run.used.items():
            yield Figure(BENCH, f"{name}_busiest_thread_of_{part.replace(' ', '_')}", used.busiest, "cores", 1, notes)


def table(runs: Sequence[Run]) -> Table:
    """A row for each run: of each kind of process the cores of the busiest one, and of its busiest thread."""
    parts = ("callers", "aggregators", "model servers")
    shown = plain_table(
        "engine", "servers", "aggregators", "door", "callers", "questions/s", "p50 ms", "p99 ms", *parts
    )
    for run in runs:
        shape = run.shape
        cores = (f"{run.used[part].cores:.2f} ({run.used[part].busiest:.2f})" for part in parts)
        shown.add_row(
            shape.engine, str(shape.servers), str(shape.aggregators), shape.door, str(shape.callers),
            f"{run.queries_per_s:,.0f}{' !' if run.marked else ''}", f"{1e3 * run.p50_s:.1f}", f"{1e3 * run.p99_s:.1f}",
            *cores,
        )  # fmt: skip
    return shown
