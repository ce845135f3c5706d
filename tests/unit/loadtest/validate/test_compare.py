"""When the simulator counts as right."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from loadtest.validate.command import table
from loadtest.validate.compare import Repeat, Row, row, simulated

LIVE = (Repeat(0.100, 0.200), Repeat(0.110, 0.300), Repeat(0.090, 0.250))


@pytest.mark.parametrize(("p50_s", "holds"), [(0.114, True), (0.086, True), (0.116, False), (0.084, False)])
def test_a_p50_within_15_percent_of_the_median_holds(p50_s: float, holds: bool) -> None:
    assert Row(0.5, 10.0, LIVE, p50_s, 0.25).p50_holds is holds


@pytest.mark.parametrize(("p99_s", "holds"), [(0.2, True), (0.3, True), (0.19, False), (0.31, False)])
def test_a_p99_within_the_spread_of_the_repeats_holds(p99_s: float, holds: bool) -> None:
    assert Row(0.5, 10.0, LIVE, 0.1, p99_s).p99_holds is holds


def test_a_light_load_takes_a_step_and_what_was_measured_besides() -> None:
    outcomes = simulated("a100-like", 2.0, 0.010, 60.0, (1, 2, 3))
    found = row(0.1, 2.0, LIVE, outcomes)
    assert found.p50_s == pytest.approx(0.030, rel=0.05)
    assert found.to_dict()["p50_holds"] is False
    written = io.StringIO()
    Console(file=written, width=200).print(table([found]))
    assert "is off" in written.getvalue()
