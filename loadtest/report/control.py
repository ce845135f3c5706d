"""Sections about control: budgets over a step, pods over an hour and a day, and every case's winner."""

from __future__ import annotations

from dataclasses import replace

from loadtest.report.load import Effort, SectionMaker
from loadtest.report.section import Plot, Section, Series, Table
from loadtest.simulate import cases
from loadtest.simulate.arrivals import Steady
from loadtest.simulate.curves import find
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Kind, Mishap, Policy, Scenario, Trouble
from loadtest.simulate.sweep import Compared, compare
from loadtest.simulate.world import simulate


def slowed(effort: Effort) -> Scenario:
    """A pod on a CPU's curve that must meet a target below its saturation point, and slows to half for a while."""
    third = effort.seconds
    base = replace(cases.case("steady", curve="minilm-cpu"), duration_s=3 * third, warm_up_s=0.1, sample_s=third / 60)
    curve = find(base.curve)
    # Half of what is promised, less the rest, is a step of three quarters of the saturation point.
    slo_s = round(2.0 * curve.time_s(3 * curve.saturation_point // 4) + 0.004, 3)
    rate = 1.3 * cases.capacity(curve, base.lengths)
    trouble = Trouble(third, 0, Mishap.SLOW, 1.8, third)
    return replace(base, slo_s=slo_s, deadline_s=2 * slo_s, arrivals=Steady(rate), noise=0.1, troubles=(trouble,))


def _step(effort: Effort) -> Section:
    scenario = slowed(effort)
    found = {kind: simulate(scenario, Policy(kind), effort.seed) for kind in (Kind.OURS, Kind.SLA_PAPER)}
    budgets = [Series(kind.value, _traced(one, "token_budget"), steps=True) for kind, one in found.items()]
    times = [Series(kind.value, _traced(one, "step_s", 1e3)) for kind, one in found.items()]
    rows = [
        (kind.value, f"{100 * one.in_time:.1f}", f"{one.throughput:.1f}", f"{1e3 * one.p99_s:.0f}")
        for kind, one in found.items()
    ]
    return Section(
        "controller",
        "The controller over a step",
        f"An overloaded pod with a small CPU's curve slows to 1/1.8 of its speed for the middle third. "
        f"{1e3 * scenario.slo_s:.0f} ms are promised, so a step may take a little less than half of that.",
        [
            Plot("token budget", "seconds", "tokens", budgets),
            Plot("predicted time of a full step", "seconds", "ms", times, limit=("half", 500 * scenario.slo_s)),
        ],
        Table(("policy", "in time %", "answers/s", "p99 ms"), rows),
        effort.command("controller"),
        str(effort.seed),
    )


def _hour(effort: Effort) -> Section:
    scenario = cases.trace_hour(20, seconds=20.0) if effort.quick else cases.trace_hour(40)
    return _scaled("hour", "Pods through a production hour", replace(scenario, sample_s=5.0), effort)


def _day(effort: Effort) -> Section:
    scenario = cases.synthetic_day(3600.0)
    return _scaled(
        "day", "Pods through a day", replace(scenario, duration_s=20.0) if effort.quick else scenario, effort
    )


def _scaled(name: str, title: str, scenario: Scenario, effort: Effort) -> Section:
    one = simulate(scenario, Policy(Kind.OURS), effort.seed)
    minutes = [moment["time_s"] / 60.0 for moment in one.trace]
    pods = [
        Series(key, [(at, moment[key]) for at, moment in zip(minutes, one.trace, strict=True)], steps=True)
        for key in ("replicas", "ready")
    ]
    needed = Series("required", [(at, moment["required"]) for at, moment in zip(minutes, one.trace, strict=True)])
    held = Series("tokens held", [(at, moment["held_tokens"]) for at, moment in zip(minutes, one.trace, strict=True)])
    figures = (
        one.arrived,
        one.answered,
        f"{100 * one.in_time:.2f}",
        f"{1e3 * one.p50_s:.0f}",
        f"{1e3 * one.p90_s:.0f}",
    )
    return Section(
        name,
        title,
        f"{one.arrived} queries; new pods serve after 92 s. The metric is the demand formula's, the autoscaler "
        "Kubernetes' with its defaults.",
        [
            Plot("pods", "minutes", "pods", [*pods, needed]),
            Plot("tokens that wait or run", "minutes", "tokens", [held]),
        ],
        Table(
            (
                "arrived",
                "answered",
                f"within {one.slo_s:g} s %",
                "p50 ms",
                "p90 ms",
                "p99 ms",
                "pod hours",
                "most pods",
            ),
            [
                (
                    *map(str, figures),
                    f"{1e3 * one.p99_s:.0f}",
                    f"{one.pod_s / 3600:.2f}",
                    f"{max((moment['replicas'] for moment in one.trace), default=0):.0f}",
                )
            ],
        ),
        effort.command(name),
        str(effort.seed),
    )


def _cases(effort: Effort) -> Section:
    names = ("steady",) if effort.quick else cases.NAMES
    seeds = (1, 2) if effort.quick else (1, 2, 3)
    kinds = (Kind.OURS, Kind.TIME_WINDOW) if effort.quick else tuple(Kind)
    rows: list[tuple[str, ...]] = []
    lines: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for number, name in enumerate(names):
        scenario = cases.case(name, seconds=effort.seconds)
        for found in compare(scenario, seeds, kinds):
            rows.append((name, *_row(found)))
            lines[found.policy.kind].append((float(number), 100 * found.interval("in_time")[0]))
    bars = [Series(kind.value, points) for kind, points in lines.items()]
    numbered = ", ".join(f"{number} {name}" for number, name in enumerate(names))
    return Section(
        "cases",
        "Every case, every policy at its best",
        "Each policy's settings are swept for each case on a seed of its own, and its best one is run on others; the "
        "± are 95 % intervals over these.",
        [Plot(f"answers in time: {numbered}", "case", "per cent", bars, bars=True)],
        Table(("case", "policy", "in time %", "±", "answers/s", "p50 ms", "p99 ms", "±"), rows),
        effort.command("cases"),
        f"{', '.join(map(str, seeds))}; swept on 100",
    )


def _row(found: Compared) -> tuple[str, ...]:
    (in_time, in_time_half), (p99_s, p99_half_s) = found.interval("in_time"), found.interval("p99_s")
    return (
        found.policy.label,
        f"{100 * in_time:.2f}",
        f"{100 * in_time_half:.2f}",
        f"{found.interval('throughput')[0]:.0f}",
        f"{1e3 * found.interval('p50_s')[0]:.1f}",
        f"{1e3 * p99_s:.1f}",
        f"{1e3 * p99_half_s:.1f}",
    )


def _traced(one: Outcome, key: str, factor: float = 1.0) -> list[tuple[float, float]]:
    return [(moment["time_s"], factor * moment[key]) for moment in one.trace]


CONTROL_SECTIONS: dict[str, SectionMaker] = {"controller": _step, "hour": _hour, "day": _day, "cases": _cases}
