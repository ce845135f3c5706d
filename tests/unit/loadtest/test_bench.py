"""Figures of benchmarks, and how they are kept."""

import asyncio
import csv
from math import inf
from pathlib import Path

import pytest

from aggregator.request import Options, Origin, Request
from aggregator.scheduler.work_item import Priority
from loadtest.bench.backlog import Progress, between, cpu_us_per_query
from loadtest.bench.figures import Figure, append, commit, hardware
from loadtest.bench.kafka_through import rate
from loadtest.bench.one_by_one import figures
from loadtest.bench.without_gathering import WithoutWaiting
from tests.fakes.clock import run
from tests.fakes.sources import GRPC


def test_cpu_time_is_taken_from_the_steady_part() -> None:
    looks = [Progress(0, 5.0, 0), Progress(1, 6.0, 1500), Progress(2, 6.4, 9500), Progress(3, 9.0, 10_000)]
    assert between(looks, 10_000) == (looks[1], looks[2])
    assert cpu_us_per_query(looks, 10_000) == pytest.approx(50.0)


def test_replies_are_timed_from_the_first_that_were_seen_and_without_them() -> None:
    looks = [Progress(0, 0.0, 0), Progress(9, 0.0, 0), Progress(10, 0.0, 200), Progress(14, 0.0, 1000)]
    assert rate(looks) == pytest.approx(200.0)


def test_figures_are_appended_below_one_heading(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    figure = Figure("P4", "ratio", 1.23456, "ratio", 3, "a note, with a comma", "≤ 1.5")
    append([figure], file)
    append([figure, figure], file)
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 3
    assert rows[0]["value"] == "1.235"
    assert rows[0]["notes"] == "a note, with a comma"
    assert (rows[0]["commit"], rows[0]["hardware"]) == (commit(), hardware())


@pytest.mark.parametrize(
    ("value", "wanted", "kept"), [(1.4, "≤ 1.5", True), (1.6, "≤ 1.5", False), (0.94, "≥ 0.95", False), (9, "", True)]
)
def test_a_figure_knows_whether_it_keeps_its_bound(value: float, wanted: str, kept: bool) -> None:
    assert Figure("b", "f", value, "u", 1, wanted=wanted).kept is kept


def test_batches_are_set_against_queries_one_by_one_turn_by_turn() -> None:
    found = figures([[10.0, 20.0, 15.0], [20.0, 20.0, 45.0], [40.0, 80.0, 60.0], [50.0, 60.0, 75.0]], 3, "")
    values = {figure.figure: figure.value for figure in found}
    assert values["transformers_one_by_one"] == 15.0
    assert values["vllm_by_1_over_transformers"] == 2.0
    assert (values["vllm_by_21"], values["vllm_by_21_over_transformers"]) == (60.0, 4.0)


def test_what_gathering_is_measured_against_admits_a_call_at_once_though_every_server_is_busy() -> None:
    async def came() -> list[int]:
        admitted: list[int] = []

        async def receive() -> None:
            while received := await calls.receive():
                admitted.append(len(received))

        calls = WithoutWaiting(lambda _: inf)
        task = asyncio.create_task(receive())
        for _ in range(2):
            calls.add(Request("", "", "", [""], Options(), Priority.DEFAULT, GRPC, "", 0.0, inf, Origin(), [None], 1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        task.cancel()
        return admitted

    assert run(came()) == [1, 1]
