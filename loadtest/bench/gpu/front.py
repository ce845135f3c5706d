"""The front: questions a second by the number of aggregators and model servers, and the process that sets the pace.

Callers run in several processes. A run whose callers have a thread at its limit says nothing of the servers, and is
marked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.table import Table

from loadtest.bench.callers import Callers, Load, Turn, callers
from loadtest.bench.figures import Figure
from loadtest.bench.processor import pin
from loadtest.bench.setting import Plan
from loadtest.screen import ERRORS, plain_table
from loadtest.stack.instant_modelserver import MODEL
from loadtest.stack.service import Aggregator, ModelServer, without_kafka

BENCH = "gpu-front"
_WARM_UP, _MOST = 200, 30_000  # questions
_TURN_S = 2.0
_CORES = 2  # of each of several model servers: processes that share a GPU stand in each other's way without
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
    """What came of a shape."""

    shape: Shape
    turn: Turn


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
    with callers(plan.folder, max(shape.processes for shape in wanted)) as calling:
        for engine, count in product(GRAPHS, servers):
            these = [each for each in wanted if (each.engine, each.servers) == (engine, count)]
            with _running(plan.folder, engine, count, max(each.aggregators for each in these)) as parts:
                timely = (each for each in these if time.monotonic() < until_s)
                found.extend(_run(each, calling, *parts, _TURN_S * plan.turn_share) for each in timely)
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
    shape: Shape, calling: Callers, servers: Sequence[ModelServer], fronts: Sequence[Aggregator], seconds: float
) -> Run:
    """Each process of callers asks one aggregator its part of the questions."""
    fronts, http = fronts[: shape.aggregators], shape.door == "http"
    targets = [f"http://{each.http_address}/v1/embeddings" if http else each.address for each in fronts]
    parts = {"aggregator": fronts, "model_server": servers}
    load = Load(shape.callers, shape.per_call, http=http)

    def turn(count: int) -> Turn:
        return calling.turn(targets, load, count, parts, shape.processes)

    found = turn(min(_MOST, max(_WARM_UP, shape.callers, round(turn(_WARM_UP).queries_per_s * seconds))))
    ERRORS.print(f"{shape.label}: {found.said}", highlight=False)
    return Run(shape, found)


def figures(runs: Sequence[Run]) -> Iterator[Figure]:
    for run in runs:
        shape = run.shape
        name = f"{shape.engine}_{shape.servers}x{shape.aggregators}_{shape.door}_{shape.callers}"
        for (figure, unit), value in run.turn.figures().items():
            yield Figure(BENCH, f"{name}_{figure}", value, unit, 1, shape.label + run.turn.mark)


def table(runs: Sequence[Run]) -> Table:
    """A row for each run: of each kind of process the cores of the busiest one, and of its busiest thread."""
    columns = ("questions/s", "p50 ms", "p99 ms", "callers' cores", "aggregator", "model server")
    shown = plain_table("engine", "servers", "aggregators", "door", "callers", *columns)
    for run in runs:
        shape, turn = run.shape, run.turn
        busiest = map(turn.busiest, ("callers", "aggregator", "model_server"))
        cores = (f"{each.cores:.2f} ({each.busiest:.2f})" for each in busiest)
        rate = f"{turn.queries_per_s:,.0f}{' !' if turn.marked else ''}"
        times = (f"{1e3 * each:.1f}" for each in (turn.p50_s, turn.p99_s))
        what = (shape.engine, shape.servers, shape.aggregators, shape.door, shape.callers)
        shown.add_row(*map(str, what), rate, *times, *cores)
    return shown
