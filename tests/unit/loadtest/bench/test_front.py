"""Figures of the front say which process set the pace, and mark a run that the load generator limited."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.bench.callers import Callers, Load, Turn
from loadtest.bench.figures import Figure
from loadtest.bench.gpu.command import kept
from loadtest.bench.gpu.engines import Engine
from loadtest.bench.gpu.front import Run, Shape, figures, shapes, table
from loadtest.bench.gpu.verdicts import equal_sums, full_graphs
from loadtest.bench.processor import Used
from loadtest.bench.sides import usual
from loadtest.bench.turns import Medians
from loadtest.screen import wide
from loadtest.stack.errors import StackError

SHAPE = Shape("graphs", 2, 4, 8, 1024)
TURN = Turn(
    4000.0,
    np.array([0.01, 0.02, 0.05]),
    12.5,
    {
        "callers": [Used(0.9, 0.5)],
        "aggregator": [Used(0.4, 0.3), Used(1.2, 1.0)],
        "model_server": [Used(0.8, 0.7)],
    },
)
RUN = Run(SHAPE, TURN)
LIMITED = replace(RUN, turn=replace(TURN, used={**TURN.used, "callers": [Used(1.6, 0.95)]}))


def test_the_cores_of_a_process_are_divided_among_its_threads() -> None:
    used = Used.between({1: 2.0, 2: 5.0}, {1: 3.0, 2: 8.0, 3: 0.5}, 4.0)
    assert (used.cores, used.busiest) == (1.125, 0.75)
    assert Used.between({}, {}, 1.0) == Used(0.0, 0.0)


def test_a_run_whose_callers_are_at_their_limit_is_marked() -> None:
    assert not TURN.marked
    assert TURN.said == "4,000/s"
    assert LIMITED.turn.said == "4,000/s (MARKED: a thread of the callers is above 0.9 cores)"
    assert all(figure.notes.endswith("above 0.9 cores)") for figure in figures([LIMITED]))
    assert not any("above" in figure.notes for figure in figures([RUN]))


def test_figures_of_calls_name_each_process_s_cores_and_busiest_thread() -> None:
    found = {figure.figure.removeprefix("graphs_2x4_grpc_1024_"): figure.value for figure in figures([RUN])}
    assert found == {
        "throughput": 4000.0,
        "p50": 20.0,
        "p99": pytest.approx(49.4),
        "server_cpu": 12.5,
        "callers_cores": 0.9,
        "callers_thread": 0.5,
        "model_server_cores": 0.8,
        "model_server_thread": 0.7,
        "aggregator1_cores": 0.4,
        "aggregator1_thread": 0.3,
        "aggregator2_cores": 1.2,
        "aggregator2_thread": 1.0,
    }
    usually = usual({"ours_64": [TURN, LIMITED.turn]}, Medians("P1", 2, "notes"))
    assert {figure.figure.removeprefix("ours_64_") for figure in usually} == set(found)
    assert all("MARKED" in figure.notes for figure in usually)


class Told:
    """A process that notes what it is told, and answers at once."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        self.told.append(what)
        seen = {"answered": 10, "failed": 0, "errors": {}, "latency_s": [0.1] * 10, "cores": 0.5, "busiest": 0.4}
        return {**seen, "began": 1.0, "ended": 3.0}


@pytest.mark.parametrize(
    ("load", "processes", "callers"),
    [(Load(64), 3, 21), (Load(2), 2, 1), (Load(64, stream=True), 1, 64), (Load(due_s=[0.1, 0.2, 0.3, 0.4]), 3, 1)],
)
def test_processes_of_callers_share_a_load(load: Load, processes: int, callers: int) -> None:
    each: list[Any] = [Told() for _ in range(3)]
    turn = Callers(each).turn(["a", "b"], load, 30, {})
    told = [process.told[0] for process in each if process.told]
    assert [one["target"] for one in told] == ["a", "b", "a"][:processes]
    assert {one["callers"] for one in told} == {callers}
    assert [one["part"] for one in told] == [(number, processes) for number in range(processes)]
    assert sorted(due_s for one in told for due_s in one["due_s"]) == list(load.due_s)
    assert turn.queries_per_s == 5.0 * processes
    assert turn.used["callers"] == [Used(0.5 * processes, 0.4)]


def test_the_table_has_the_busiest_thread_of_each_kind_of_process() -> None:
    console = wide(160)
    with console.capture() as captured:
        console.print(table([RUN, LIMITED]))
    assert "1.20 (1.00)" in captured.get()
    assert captured.get().count("4,000 !") == 1


def test_each_step_adds_aggregators_or_servers_with_and_without_graphs() -> None:
    found = list(shapes((1, 2), (1, 2)))
    for engine in ("eager", "graphs"):
        own = [each for each in found if each.engine == engine]
        assert {(each.servers, each.aggregators) for each in own} == {(1, 1), (1, 2), (2, 2)}
        assert {each.door for each in own if each.callers == 1} == {"grpc", "http"}
    assert all(each.callers == 1 or each.processes == 2 * each.aggregators for each in found)


def test_a_part_that_fails_leaves_the_figures_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> list[Figure]:
        raise StackError("no Java")

    graphs, core = (Figure("gpu", name, 1.0, "ms", 1) for name in ("graphs", "core"))
    parts = {"graphs": lambda: [graphs], "stack": fails, "core": lambda: [core]}
    assert kept(parts, tmp_path / "results.csv", "bench-gpu") == ([graphs, core], 2)
    assert len((tmp_path / "results.csv").read_text(encoding="utf-8").splitlines()) == 3
    assert "no Java" in capsys.readouterr().err
    assert kept({"core": lambda: [core]}, tmp_path / "results.csv", "bench-gpu") == ([core], 0)


def test_steps_of_equal_sums_are_compared() -> None:
    said = equal_sums(Engine("minilm", "direct", lengths={"usual": 0.0021, "6": 0.002, "200": 0.0022}))
    assert said.endswith("take ms: usual 2.10, 6 2.00, 200 2.20: 10% apart")


@pytest.mark.parametrize(
    ("step_s", "sizes", "said"),
    [
        (0.0006, (64, 1024), "3.83 × direct at 600 tokens (2 wanted): set engine.graphs to auto by default"),
        (0.0015, (64, 1024), "1.53 × direct at 600 tokens (2 wanted): leave engine.graphs off"),
        (0.0023, (), "captured no graphs"),
    ],
)
def test_the_verdict_on_graphs_is_that_of_their_record(step_s: float, sizes: tuple[int, ...], said: str) -> None:
    eager = Engine("minilm", "direct", steps={600: (0.0023, 0.0004)})
    graphed = Engine("minilm", "direct with graphs", capture_sizes=sizes, steps={600: (step_s, 0.0004)})
    assert said in full_graphs(graphed, eager)
