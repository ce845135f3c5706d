"""When the simulator counts as right."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from loadtest.lab.validate.command import table
from loadtest.lab.validate.compare import Repeat, Row, Run, row, simulated
from loadtest.lab.validate.costs import Reading, costs
from loadtest.simulate.clock import StepTimes
from loadtest.simulate.scenario import Work

LIVE = (Repeat(0.100, 0.200), Repeat(0.110, 0.300), Repeat(0.090, 0.250))


@pytest.mark.parametrize(
    ("p50_s", "p99_s", "holds"),
    [(0.114, 0.2, True), (0.086, 0.3, True), (0.116, 0.19, False), (0.084, 0.31, False)],
)
def test_a_p50_holds_within_15_percent_of_the_median_and_a_p99_within_the_spread_of_the_repeats(
    p50_s: float, p99_s: float, *, holds: bool
) -> None:
    found = Row(0.5, 10.0, LIVE, p50_s, p99_s)
    assert found.p50_holds is found.p99_holds is holds


def runs(times: float = 1.0, work: Work | None = None) -> list[Run]:
    """Three, whose steps took so many times what the curve says."""
    return [Run(work or Work(), StepTimes((100.0,), (times,), (0.95, 1.05)))] * 3


def test_a_light_load_takes_a_step_and_what_was_measured_besides() -> None:
    found = row(0.1, 2.0, LIVE, simulated("a100-like", 2.0, 60.0, runs(), 0.010))
    assert found.p50_s == pytest.approx(0.030, rel=0.05)
    assert found.to_dict()["p50_holds"] is False
    written = io.StringIO()
    Console(file=written, width=200).print(table([found]))
    assert "is off" in written.getvalue()


ALONE = Reading(callers_s=0.2, front_s=0.4, server_s=1.5, computed_s=1.4, steps=100, queries=100)
LOADED = Reading(callers_s=0.4, front_s=1.0, server_s=3.3, computed_s=3.2, steps=100, queries=400)


def test_costs_are_parted_into_those_of_calls_queries_batches_and_steps() -> None:
    found = costs(0.010, ALONE, LOADED)
    work = found.work
    assert (work.call_s, work.query_s, work.batch_s, work.step_s) == pytest.approx((0.001, 0.002, 0.002, 0.001))
    assert found.delay_s == pytest.approx(0.010 - 0.002 - 0.004 - 0.001)
    assert costs(0.003, ALONE, LOADED).delay_s == 0.0
    with pytest.raises(ValueError, match="do not tell"):
        costs(0.010, ALONE, ALONE)
