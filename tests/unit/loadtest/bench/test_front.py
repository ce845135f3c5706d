"""Figures of the front say which process set the pace, and mark a run that the load generator limited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.bench.gpu.engines import Engine
from loadtest.bench.gpu.front import Run, Shape, figures, shapes, table
from loadtest.bench.gpu.verdicts import equal_sums, full_graphs
from loadtest.bench.processor import Used
from loadtest.bench.sides import Turn
from loadtest.screen import wide

SHAPE = Shape("graphs", 2, 4, 8, 1024)
RUN = Run(
    SHAPE,
    4000.0,
    0.02,
    0.05,
    {"callers": Used(0.9, 0.5), "aggregators": Used(1.2, 1.0), "model servers": Used(0.8, 0.7)},
)
LIMITED = replace(RUN, used={**RUN.used, "callers": Used(1.0, 0.95)})


def test_the_cores_of_a_process_are_divided_among_its_threads() -> None:
    used = Used.between({1: 2.0, 2: 5.0}, {1: 3.0, 2: 8.0, 3: 0.5}, 4.0)
    assert (used.cores, used.busiest) == (1.125, 0.75)
    assert Used.between({}, {}, 1.0) == Used(0.0, 0.0)


def test_a_run_whose_callers_are_at_their_limit_is_marked() -> None:
    assert not RUN.marked
    assert LIMITED.marked
    found = {figure.figure: figure for figure in figures([LIMITED])}
    assert found["graphs_2x4_grpc_1024_throughput"].value == 4000.0
    assert found["graphs_2x4_grpc_1024_busiest_thread_of_model_servers"].value == 0.7
    assert all("callers' thread above 0.9 cores" in figure.notes for figure in found.values())
    assert not any("above" in figure.notes for figure in figures([RUN]))
    assert Turn(100.0, 0.1, 0.2, 5.0, 0.95).said == "100/s (load generator at its limit)"
    assert Turn(100.0, 0.1, 0.2, 5.0, 0.85).said == "100/s"


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
