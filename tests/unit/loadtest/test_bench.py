"""Figures of benchmarks, and how they are kept."""

import csv
from pathlib import Path

import pytest

from loadtest.bench.backlog import Progress, between, cpu_us_per_query
from loadtest.bench.figures import Figure, append, commit, hardware


def test_cpu_time_is_taken_from_the_steady_part() -> None:
    looks = [Progress(0, 5.0, 0), Progress(1, 6.0, 1500), Progress(2, 6.4, 9500), Progress(3, 9.0, 10_000)]
    assert between(looks, 10_000) == (looks[1], looks[2])
    assert cpu_us_per_query(looks, 10_000) == pytest.approx(50.0)


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
