"""How far turns differ is measured, kept and drawn."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtest.bench.figures import Figure, append, table
from loadtest.bench.mixed.measure import share_figures, shares_plot
from loadtest.bench.plots import write
from loadtest.bench.records.kafka_through import NAME
from loadtest.bench.turns import Medians
from loadtest.plots import Plot, Series, draw

MEDIANS = Medians("P1", 3, "turns of 6 s")


def test_a_median_has_the_least_and_the_most_of_its_turns() -> None:
    found = MEDIANS.of("ours_64_throughput", "query/s", [792.0, 543.0, 676.0])
    assert (found.value, found.spread) == (676.0, (543.0, 792.0))
    assert MEDIANS.of("ours_64_throughput", "query/s", [676.0]).spread is None
    assert MEDIANS.ratio("over_vllm_64", [4.0, 9.0], [2.0, 3.0]).spread == (2.0, 3.0)


def test_results_keep_the_spread_beside_the_median(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    append([MEDIANS.of("ours", "query/s", [3.0, 1.0, 2.0]), Figure("P1", "step", 5.0, "ms", 1)], file)
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    assert [(row["value"], row["least"], row["most"]) for row in rows] == [("2", "1", "3"), ("5", "", "")]


def test_every_row_of_the_results_has_every_column() -> None:
    file = Path(__file__).parents[4] / "loadtest" / "results.csv"
    first, *rows = csv.reader(file.read_text(encoding="utf-8").splitlines())
    assert {len(row) for row in rows} == {len(first)}


def test_the_table_shows_how_far_turns_differ() -> None:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as shown:
        console.print(table([MEDIANS.of("ours", "query/s", [3.0, 1.0, 2.0])]))
    assert "1 to 3" in shown.get()


@pytest.mark.parametrize("bars", [True, False])
def test_a_plot_draws_the_spread_of_the_points_that_have_one(bars: bool) -> None:
    points = [(0.0, 2.0), (1.0, 5.0)]
    bare, one, two = (
        draw(Plot("t", "", "y", [Series("s", points, spread=spread)], bars=bars), "n").count("LineCollection")
        for spread in ({}, {0.0: (1.0, 3.0)}, {0.0: (1.0, 3.0), 1.0: (4.0, 6.0)})
    )
    assert (one - bare, two - bare) == (1, 2)


def test_the_plot_of_a_benchmark_has_its_figures_spread(tmp_path: Path) -> None:
    turns = {"ours": [9.0, 8.0], "plain": [4.0, 3.0], "one_a_call": [1.0], "engine": [12.0, 11.0]}
    medians = Medians(NAME, 2, "")
    write([medians.of(f"{name}_throughput", "query/s", each) for name, each in turns.items()], tmp_path)
    assert (tmp_path / f"{NAME}.svg").read_text(encoding="utf-8").count('id="P2-LineCollection') == 3


class Heard:
    """What one turn of a pair of servers gave; its times do not matter here."""

    def __init__(self, per_cpu_s: float) -> None:
        self.per_cpu_s = self.requests_per_s = per_cpu_s

    def percentile_s(self, *_: object) -> float:
        return 0.1

    def between_percentile_s(self, *_: object) -> float:
        return 0.01


def test_mixed_steps_are_compared_turn_by_turn_with_their_spread() -> None:
    turns: Any = {
        "mixed": [Heard(10.0), Heard(12.0)],
        "split": [Heard(5.0), Heard(8.0)],
        "other": [Heard(8.0), Heard(3.0)],
    }
    found = {each.figure: each for each in share_figures(MEDIANS, {0.5: turns}, "notes")}
    assert (found["mixed_50_per_cpu_s"].value, found["mixed_50_per_cpu_s"].spread) == (11.0, (10.0, 12.0))
    assert (found["mixed_50_over_split"].value, found["mixed_50_over_split"].spread) == (1.75, (1.5, 2.0))
    assert (found["mixed_50_over_best"].value, found["least_over_best"].value) == (1.375, 1.375)
    assert "LineCollection" in shares_plot(found.values())
