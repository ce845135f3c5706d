"""Sections about control: budgets over a step, pods over an hour and a day, and every case's winner."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

from loadtest.lab.report.load import Effort, SectionMaker, look
from loadtest.lab.sweep import SWEPT_ON, Compared, best, compare
from loadtest.section import Plot, Section, Series, Table
from loadtest.simulate import cases
from loadtest.simulate.clock import find
from loadtest.simulate.load import Steady
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Fault, FaultKind, Kind, Policy, Scenario
from loadtest.simulate.simulation import Pool, simulate

_MOST_P99_MS = 300.0
"""Of the plot of all cases: more is a queue that grew until its queries were given up."""


class _Head(NamedTuple):
    """What a section is called, and what it shows."""

    name: str
    title: str
    text: str


def slowed(effort: Effort) -> Scenario:
    """A pod on a CPU's curve that must meet a target below its saturation point, and slows to half for a while."""
    third = effort.seconds
    base = replace(cases.case("steady", curve="minilm-cpu"), duration_s=3 * third, warm_up_s=0.1, sample_s=third / 60)
    curve = find(base.curve)
    # Half of the target, less the rest, is a step of three quarters of the saturation point.
    slo_s = round(2.0 * curve.time_s(3 * curve.saturation_point // 4) + 0.004, 3)
    rate = 1.3 * cases.capacity(curve, base.lengths)
    fault = Fault(third, 0, FaultKind.SLOW, 1.8, third)
    return replace(base, slo_s=slo_s, deadline_s=2 * slo_s, arrivals=Steady(rate), noise=0.1, faults=(fault,))


def _step(effort: Effort, pool: Pool) -> Section:
    scenario = slowed(effort)
    kinds = (Kind.OURS, Kind.SLA_PAPER)
    found = dict(zip(kinds, pool.map(simulate, [scenario] * 2, map(Policy, kinds), [effort.seed] * 2), strict=True))
    budgets = [
        Series(kind.value, _traced(one, "token_budget"), steps=True, look=look(kind)) for kind, one in found.items()
    ]
    times = [Series(kind.value, _traced(one, "step_s", 1e3), look=look(kind)) for kind, one in found.items()]
    rows = [
        (kind.value, third, *_of_third(one, number * effort.seconds, (number + 1) * effort.seconds))
        for kind, one in found.items()
        for number, third in enumerate(("before", "slow", "after"))
    ]
    return Section(
        "controller",
        "The controller over a step",
        "More waits than the pod can do, so every batch is full and the controller alone says how long its step takes. "
        f"The pod has a small CPU's curve and takes 1.8 times as long for the middle third. "
        f"{1e3 * scenario.slo_s:.0f} ms is the latency target, so a step may take a little less than half of that.",
        [
            Plot("token budget", "seconds", "tokens", budgets, from_zero=True),
            Plot(
                "predicted time of a full step",
                "seconds",
                "ms",
                times,
                limit=("half of the latency target", 500 * scenario.slo_s),
                from_zero=True,
            ),
        ],
        Table(("policy", "third", "mean tokens", "mean step ms", "longest step ms"), rows, names=2),
        effort.command("controller"),
        str(effort.seed),
    )


def _of_third(one: Outcome, from_s: float, until_s: float) -> tuple[str, ...]:
    """Budget and predicted step over a part of the run, less the first quarter of it, in which it completes."""
    from_s += 0.25 * (until_s - from_s)
    moments = [moment for moment in one.trace if from_s <= moment["time_s"] <= until_s]
    steps = [1e3 * moment["step_s"] for moment in moments]
    return f"{mean(moment['token_budget'] for moment in moments):.0f}", f"{mean(steps):.0f}", f"{max(steps):.0f}"


def _hour(effort: Effort, pool: Pool) -> Section:
    scenario = cases.trace_hour(seconds=180.0 if effort.quick else 3600.0)
    text = "The bundled hour of a production service, arrivals only, twenty copies within ten minutes of each other"
    return _scaled(_Head("hour", "Pods through a production hour", text), scenario, effort, pool)


def _day(effort: Effort, pool: Pool) -> Section:
    scenario = cases.synthetic_day(3600.0)
    text = "A made day from night to night, 24 times as fast, while pods start no faster"
    if effort.quick:
        scenario = replace(scenario, duration_s=180.0)
    return _scaled(_Head("day", "Pods through a day", text), scenario, effort, pool)


def _scaled(head: _Head, scenario: Scenario, effort: Effort, pool: Pool) -> Section:
    [one] = pool.map(simulate, [scenario], [Policy(Kind.OURS)], [effort.seed])
    minutes = [moment["time_s"] / 60.0 for moment in one.trace]
    pods = [
        Series(label, [(at, moment[key]) for at, moment in zip(minutes, one.trace, strict=True)], steps=steps)
        for label, key, steps in (
            ("required by the load", "required", False),
            ("asked for by the autoscaler", "replicas", True),
            ("ready", "ready", True),
        )
    ]
    held = Series("tokens", [(at, moment["held_tokens"]) for at, moment in zip(minutes, one.trace, strict=True)])
    load = Series("queries per second", _rate(one))
    figures = (
        f"{one.arrived:,}",
        f"{one.answered:,}",
        f"{100 * one.in_time:.2f}",
        *(f"{1e3 * value:.0f}" for value in (one.p50_s, one.p90_s, one.p99_s)),
        f"{one.pod_s / 3600:.2f}",
        f"{max((moment['replicas'] for moment in one.trace), default=0):.0f}",
    )
    columns = (
        "arrived",
        "answered",
        f"within {one.slo_s:g} s %",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "pod hours",
        "most pods",
    )
    return Section(
        head.name,
        head.title,
        f"{head.text}: {one.arrived:,} queries to pods with a small CPU's curve that serve 92 s after they are asked "
        "for. The metric is the demand formula's, the autoscaler Kubernetes' with its defaults.",
        [
            Plot("load, over half a minute", "minutes", "queries per second", [load], from_zero=True),
            Plot("pods", "minutes", "pods", pods, from_zero=True),
            Plot("tokens that wait or run", "minutes", "tokens", [held], from_zero=True),
        ],
        Table(columns, [figures]),
        effort.command(head.name),
        str(effort.seed),
    )


def _rate(one: Outcome) -> list[tuple[float, float]]:
    """Arrivals per second over half a minute each, at its end in minutes."""
    moments = one.trace[:: max(1, round(30.0 / one.trace[0]["time_s"]))] if one.trace else ()
    return [
        (moment["time_s"] / 60.0, (moment["arrived"] - last["arrived"]) / (moment["time_s"] - last["time_s"]))
        for last, moment in pairwise(moments)
    ]


def _cases(effort: Effort, pool: Pool) -> Section:
    names = ("steady",) if effort.quick else cases.NAMES
    seeds = (1, 2) if effort.quick else (1, 2, 3, 4, 5)
    kinds = (Kind.OURS, Kind.TIME_WINDOW) if effort.quick else tuple(Kind)
    rows: list[tuple[str, ...]] = []
    in_time: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    p99_ms: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for number, name in enumerate(names):
        scenario = cases.case(name, seconds=effort.seconds)
        policies = [best(kind, scenario, pool) for kind in kinds]
        for found in compare(scenario, policies, seeds, pool):
            rows.append((name, *_row(found)))
            in_time[found.policy.kind].append((float(number), 100 * found.interval("in_time")[0]))
            p99_ms[found.policy.kind].append((float(number), 1e3 * found.interval("p99_s")[0]))
    plots = [
        Plot(
            title,
            "",
            unit,
            [Series(kind.value, points, look=look(kind)) for kind, points in figures.items()],
            bars=True,
            y_max=y_max,
            x_names=names,
        )
        for title, unit, figures, y_max in (
            ("answers in time", "per cent", in_time, 105.0),
            (f"p99, up to {_MOST_P99_MS:.0f} ms", "ms", p99_ms, _MOST_P99_MS),
        )
    ]
    return Section(
        "cases",
        "Every case, every policy at its best",
        "Each policy's settings are swept for each case on seeds of their own, and its best one is run on others; the "
        "± are 95 % intervals over these. The command “python -m loadtest sweep” does the same on 25 seeds, and keeps "
        "every setting that was tried.",
        plots,
        Table(("case", "policy", "in time %", "±", "answers/s", "p50 ms", "p99 ms", "±"), rows, names=2),
        effort.command("cases"),
        f"{', '.join(map(str, seeds))}; settings swept on {', '.join(map(str, SWEPT_ON))}",
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
