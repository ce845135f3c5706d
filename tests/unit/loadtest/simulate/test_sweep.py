"""docs/sweep.csv is the file that the sweep's command writes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.simulate import cases
from loadtest.simulate.scenario import Kind
from loadtest.simulate.sweep import settings

KEPT = Path(__file__).parents[4] / "docs" / "sweep.csv"


@pytest.mark.slow
def test_the_file_of_the_sweep_holds_what_its_command_writes(tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    policies = ("ours", "static_tokens", "sequential")
    assert main(["sweep", "--case", "low", "--policy", *policies, "--out", str(file)]) == 0
    kept = KEPT.read_text(encoding="utf-8").splitlines()
    head, *written = file.read_text(encoding="utf-8").splitlines()
    assert head == kept[0]
    assert written == [line for line in kept if line.startswith(tuple(f"low,{policy}," for policy in policies))]


def test_the_file_of_the_sweep_holds_every_case_and_setting_once() -> None:
    with KEPT.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    swept = [(row["case"], row["setting"]) for row in rows if row["seeds"].startswith("100")]
    assert sorted(swept) == sorted(
        (name, policy.label)
        for name in cases.NAMES
        for kind in Kind
        for policy in settings(kind, cases.case(name, seconds=10.0))
    )
