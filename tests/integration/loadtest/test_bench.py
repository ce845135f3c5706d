"""`loadtest bench` measures real processes; its figures are for a quiet machine, so none is judged here."""

import csv
from pathlib import Path

import pytest

from loadtest.__main__ import main

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]


def test_both_sides_are_measured_and_every_figure_is_kept(tmp_path: Path) -> None:
    results = tmp_path / "results.csv"
    where = ["--data-dir", str(tmp_path / "bench"), "--results", str(results)]
    assert main(["bench", "P4", "P6", *where, "--queries", "12000", "--repeats", "1"]) == 0
    with results.open(newline="") as lines:
        figures = {(row["bench"], row["figure"]): float(row["value"]) for row in csv.DictReader(lines)}
    assert figures["P4", "bare_loop_cpu"] > 0
    assert figures["P4", "aggregator_over_bare_loop"] > 0
    assert 0.5 < figures["P6", "mean_batch_fill"] <= 1
    assert not (tmp_path / "bench" / "kafka").exists()
