"""Each of the core's mechanisms, switched off in the simulator."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.lab.ablation import Run, Trial, bears_on, policies
from loadtest.simulate import cases
from loadtest.simulate.core_aggregator import Mechanism
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Scenario
from loadtest.simulate.simulation import simulate


def short(scenario: Scenario) -> Scenario:
    return replace(scenario, duration_s=min(scenario.duration_s, 1.5), warm_up_s=0.0)


def without_its_name(outcome: Outcome) -> dict[str, object]:
    return {**asdict(outcome), "policy": ""}


BEARS = {
    Mechanism.SUBSETS: cases.pool(40, 2, 0.8, seconds=0.2),
    Mechanism.PACING: cases.case("shared"),
    Mechanism.HALF_BATCHES: cases.case("shared"),
    Mechanism.LARGE_STEPS: cases.case("backlog"),
    Mechanism.CAPTURE_SIZES: cases.case("overload", curve="a100-graphs"),
    Mechanism.SKIPPING: cases.case("slow-pod", seconds=1.5),
    Mechanism.STAGING: cases.case("steady"),
    Mechanism.DEADLINE_ESTIMATE: cases.case("overload"),
    Mechanism.LOOK_AHEAD: cases.case("overload"),
    Mechanism.AGED_SHARE: cases.backlog_under_overload(),
}


@pytest.mark.parametrize("mechanism", Mechanism)
def test_each_mechanism_can_be_switched_off_and_nobody_is_lost(mechanism: Mechanism) -> None:
    scenario = replace(BEARS[mechanism], warm_up_s=0.0)
    if mechanism is not Mechanism.AGED_SHARE:  # a backlog ages after 5 s
        scenario = short(scenario)
    assert bears_on(mechanism, scenario)
    on, off = (simulate(scenario, policy, 1) for policy in policies(mechanism))
    assert without_its_name(on) != without_its_name(off)
    for outcome in (on, off):
        assert outcome.arrived == outcome.answered + outcome.refused + outcome.expired


def trial(p99_s: float, without_s: float, goodput: float, without: float) -> Trial:
    def runs(p99_s: float, goodput: float) -> tuple[Run, ...]:
        return tuple(Run("case", "ours", seed, 0.1, p99_s * seed, goodput, goodput, 1.0) for seed in (1, 2, 3))

    return Trial("case", Mechanism.PACING, runs(p99_s, goodput), runs(without_s, without))


def test_a_mechanism_pays_by_a_twentieth_of_p99_or_of_answers_in_time() -> None:
    assert trial(0.94, 1.0, 100.0, 100.0).p99_gain == pytest.approx((0.06, 0.0))
    assert trial(0.94, 1.0, 100.0, 100.0).pays
    assert trial(1.0, 1.0, 106.0, 100.0).pays
    assert not trial(0.96, 1.0, 104.0, 100.0).pays
    assert trial(1.06, 1.0, 100.0, 100.0).costs
    assert trial(1.0, 1.0, 94.0, 100.0).costs
    assert not trial(1.04, 1.0, 96.0, 100.0).costs
    assert trial(1.0, 1.0, 3.0, 0.0).goodput_gain[0] == 2.0


def test_a_gain_within_the_spread_of_the_seeds_does_not_pay() -> None:
    on = (Run("case", "", seed, 0.1, p99_s, 1.0, 1.0, 1.0) for seed, p99_s in enumerate((0.5, 1.3, 0.9)))
    off = (Run("case", "", seed, 0.1, 1.0, 1.0, 1.0, 1.0) for seed in range(3))
    noisy = Trial("case", Mechanism.PACING, tuple(on), tuple(off))
    assert noisy.p99_gain[0] == pytest.approx(0.1)
    assert not noisy.pays


def test_the_command_writes_the_table_and_goes_on_from_the_runs_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, out = tmp_path / "runs.csv", tmp_path / "table.csv"
    asked = ["ablate", "skipping", "--case", "pod-dies-cpu", "slow-pod-cpu", "--most-seeds", "1", "--processes", "0"]
    assert main([*asked, "--runs", str(kept), "--out", str(out)]) == 0
    assert "skipping: " in capsys.readouterr().out
    first = out.read_text()
    assert [row["case"] for row in csv.DictReader(first.splitlines())] == ["slow-pod-cpu", "pod-dies-cpu"]
    lines = kept.read_text().splitlines()
    assert len(lines) == 1 + 2 * 2
    kept.write_text("\n".join([*lines[:3], ""]))
    assert main([*asked, "--runs", str(kept), "--out", str(out)]) == 0
    assert kept.read_text().splitlines() == lines
    assert out.read_text() == first
