"""Whole simulations, short ones."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.simulate import cases, clock
from loadtest.simulate.core_aggregator import Mechanism
from loadtest.simulate.load import Lengths, Steady, Steps
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scaling import Autoscale, HpaPolicy
from loadtest.simulate.scenario import Fault, FaultKind, Kind, Policy, Scenario
from loadtest.simulate.simulation import simulate

SHORT = Scenario("short", Steady(1500.0), 3.0, deadline_s=1.0, warm_up_s=0.0)
POLICIES = [
    Policy(Kind.OURS),
    Policy(Kind.OURS, tokens=300),
    Policy(Kind.SLA_PAPER),
    Policy(Kind.STATIC_TOKENS, tokens=600, depth=1),
    Policy(Kind.REQUEST_COUNT, size=50, wait_s=0.005),
    Policy(Kind.TIME_WINDOW, wait_s=0.02, margin_s=0.01),
    Policy(Kind.SEQUENTIAL),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.label)
def test_the_same_seed_gives_the_same_bytes_and_nobody_is_lost(policy: Policy) -> None:
    outcome = simulate(SHORT, policy, 7)
    assert outcome.to_json() == simulate(SHORT, policy, 7).to_json()
    assert outcome.to_json() != simulate(SHORT, policy, 8).to_json()
    assert outcome.arrived == outcome.answered + outcome.refused + outcome.expired


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[3]], ids=lambda policy: policy.label)
def test_when_a_pod_fails_every_query_is_answered_by_another(policy: Policy, kind: FaultKind) -> None:
    if kind is FaultKind.HANGS and policy.kind is not Kind.OURS:
        return  # the plain ones have no time-outs, and wait
    fault = Fault(1.0, 0, kind, for_s=1.0)
    scenario = replace(SHORT, pods=3, deadline_s=float("inf"), faults=(fault,))
    outcome = simulate(scenario, policy, 3)
    assert outcome.answered == outcome.arrived


def test_of_batches_that_others_are_merged_with_two_fit_one_step() -> None:
    shared = replace(cases.case("shared", seconds=2.5), warm_up_s=0.5)
    halved = simulate(shared, Policy(Kind.OURS), 1)
    whole = simulate(shared, Policy(Kind.OURS, without=frozenset({Mechanism.HALF_BATCHES})), 1)
    assert halved.in_time > 0.99
    assert halved.p99_s < 0.85 * whole.p99_s


def test_budgets_of_capture_sizes_answer_more_of_an_overload_with_graphs() -> None:
    smooth = frozenset({Mechanism.CAPTURE_SIZES})
    graphs = cases.case("overload", curve="a100-graphs", seconds=4.0)
    snapped, between = (simulate(graphs, Policy(Kind.OURS, without=off), 1) for off in (frozenset[Mechanism](), smooth))
    assert snapped.in_time > 0.99
    assert between.in_time < 0.9
    assert snapped.p99_s <= between.p99_s
    plain = replace(graphs, curve="a100-like")
    on, off = (simulate(plain, Policy(Kind.OURS, without=each), 1) for each in (frozenset[Mechanism](), smooth))
    assert replace(on, policy="") == replace(off, policy="")


def test_graphs_shorten_the_tail_of_short_steps_at_the_same_load() -> None:
    rate = cases.capacity(clock.find("h200-eager"), Lengths())
    steady = replace(cases.case("steady", seconds=0.2), slo_s=0.1, deadline_s=0.1, warm_up_s=0.05)
    for share, gain in ((0.2, 0.75), (0.6, 0.95)):
        load = replace(steady, arrivals=Steady(share * rate))
        sides = (replace(load, curve=f"h200-{each}") for each in ("graphs", "eager"))
        graphs, eager = (simulate(each, Policy(Kind.OURS), 1) for each in sides)
        assert graphs.in_time == eager.in_time == 1.0
        assert graphs.p99_s < gain * eager.p99_s


def without(mechanism: Mechanism) -> Policy:
    return Policy(Kind.OURS, without=frozenset({mechanism}))


def test_equal_questions_that_wait_are_computed_once() -> None:
    repeated = replace(SHORT, arrivals=Steady(4000.0), texts=300)
    together, alone = (simulate(repeated, policy, 1) for policy in (Policy(Kind.OURS), without(Mechanism.COALESCING)))
    assert together.answered == together.arrived
    assert alone.expired > alone.arrived / 10


@pytest.mark.parametrize("name", ["low", "steady"])
def test_batches_far_from_full_are_answered_sooner_if_sent_later(name: str) -> None:
    case = cases.case(name, seconds=10.0)
    later, early = (simulate(case, policy, 1) for policy in (Policy(Kind.OURS), without(Mechanism.LIGHT_LEAD)))
    assert later.p50_s < early.p50_s - 0.0005
    assert later.p99_s < early.p99_s - 0.0005


@pytest.mark.parametrize("pods", [1, 2])
def test_an_input_that_no_step_survives_harms_no_other(pods: int) -> None:
    poisoned = replace(SHORT, pods=pods, deadline_s=float("inf"), poison=1e-3)
    halves, singles = (simulate(poisoned, policy, 2) for policy in (Policy(Kind.OURS), without(Mechanism.HALVING)))
    for outcome in (halves, singles):
        assert outcome.answered + outcome.expired == outcome.arrived
        assert outcome.expired == halves.expired > 0
    assert halves.mean_s < singles.mean_s


def test_a_step_in_load_brings_pods_and_the_queue_is_done_as_promised() -> None:
    autoscale = Autoscale(HpaPolicy(max_replicas=10), start_s=20.0)
    drain_s, period_s = autoscale.demand.drain_s, autoscale.hpa.sync_s
    arrivals = Steps(((0.0, 30.0), (60.0, 200.0)))
    scenario = Scenario(
        "scaled", arrivals, 240.0, lengths=Lengths(documents=1.0), slo_s=1.0, autoscale=autoscale, sample_s=5.0
    )
    trace = simulate(scenario, Policy(Kind.OURS), 1).trace
    assert trace[10]["replicas"] == 1
    assert max(moment["replicas"] for moment in trace) <= 5
    promised_s = 60.0 + drain_s + autoscale.start_s + 2 * period_s
    assert all(moment["held_tokens"] < 30_000 for moment in trace if moment["time_s"] > promised_s)
    assert max(moment["held_tokens"] for moment in trace) > 100_000


def test_a_profiles_curve_is_read_and_anything_else_refused(tmp_path: Path) -> None:
    assert clock.find("minilm-cpu").per_token_s > 0.0
    file = tmp_path / "profile.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match="is not a profile"):
        clock.find(str(file))
    assert clock.slower(clock.A100_LIKE, 2.0).time_s(600) == pytest.approx(0.040)


def test_the_command_writes_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.json"
    arguments = ["--case", "steady", "step", "--policy", "ours", "static_tokens", "--seconds", "3", "--json", str(file)]
    assert main(["simulate", *arguments]) == 0
    runs = [json.loads(line) for line in file.read_text().splitlines()]
    assert [run["scenario"] for run in runs] == ["steady", "steady", "step", "step"]
    assert set(runs[0]) == set(Outcome.__dataclass_fields__)
    assert "million queries" in capsys.readouterr().err
    assert main(["simulate", "--curve", str(tmp_path / "absent.json")]) == 2


@pytest.mark.parametrize("seconds", ["0.5", "2"])
def test_a_run_shorter_than_the_cases_warm_up_counts_most_of_what_came(tmp_path: Path, seconds: str) -> None:
    file = tmp_path / "runs.json"
    assert main(["simulate", "--case", "steady", "--seconds", seconds, "--json", str(file)]) == 0
    run = json.loads(file.read_text())
    assert run["answered"] > 0
    assert all(isfinite(run[figure]) for figure in ("throughput", "goodput", "tokens_per_s", "p99_s"))
    assert run["throughput"] == pytest.approx(run["answered"] / (0.9 * float(seconds)))


LOAD = Scenario(
    "day",
    Steps(((0.0, 10.0), (600.0, 600.0), (660.0, 10.0))),
    1200.0,
    curve="minilm-cpu",
    slo_s=0.1,
    warm_up_s=0.0,
    sample_s=60.0,
    autoscale=Autoscale(HpaPolicy(max_replicas=4)),
)


@pytest.mark.parametrize("kind", [Kind.OURS, Kind.SEQUENTIAL])
def test_a_load_with_a_burst_comes_out_alike_with_few_calm_stretches(kind: Kind) -> None:
    whole, part = (simulate(replace(LOAD, calm_share=share), Policy(kind)) for share in (1.0, 0.3))
    assert part.arrived == whole.arrived
    assert part.answered == pytest.approx(whole.answered, rel=0.01)
    assert part.in_time == pytest.approx(whole.in_time, abs=0.02)
    assert part.p50_s == pytest.approx(whole.p50_s, rel=0.1)
    assert part.p99_s == pytest.approx(whole.p99_s, rel=0.1)
    assert part.pod_s == pytest.approx(whole.pod_s, rel=0.05)


def test_questions_hardly_wait_for_a_backlog_of_their_own_or_anothers() -> None:
    """Beside a backlog at another aggregator p99 is at most three times that alone, at the same one 3.5 times."""
    same, other = (cases.case(name, curve="minilm-cpu") for name in ("beside-backlog", "beside-anothers-backlog"))
    alone_s = simulate(replace(same, backlog=0), Policy(Kind.OURS), 1).p99_s
    for scenario, most in ((same, 3.5), (other, 3.0)):
        outcome = simulate(scenario, Policy(Kind.OURS), 1)
        assert outcome.p99_s < most * alone_s
        assert outcome.backlog_per_s > 70.0  # 102 where the server ran batches in their order of arrival
