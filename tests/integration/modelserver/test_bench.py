"""P3 measures real processes; its figures are for a quiet machine and a real model, so none is judged here."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from loadtest.__main__ import main


@pytest.mark.slow
def test_the_server_is_measured_beside_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENBATCH_MODELSERVER_ENGINE__KIND", "synthetic")
    monkeypatch.setenv("TOKENBATCH_MODELSERVER_SYNTHETIC__FIXED_S", "0.1")
    results = tmp_path / "results.csv"
    where = ["--data-dir", str(tmp_path / "bench"), "--results", str(results)]
    assert main(["bench", "P3", *where, "--repeats", "1"]) == 0
    with results.open(encoding="utf-8", newline="") as lines:
        figures = {row["figure"]: float(row["value"]) for row in csv.DictReader(lines)}
    assert figures["server_throughput"] > 0
    assert figures["server_over_forward"] > 0
    assert figures["server_over_forward_cpu"] > 0
