"""`loadtest plan`: how many model servers a load of one's own takes, by the production scheduler and scaler."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from pathlib import Path

from rich.table import Table

from aggregator.errors import TokenbatchError
from aggregator.registry import KINDS
from aggregator.replicas.pool import describe
from aggregator.scheduler.curve import Curve
from loadtest.options import fail, positive, positive_int
from loadtest.plan.arrivals_file import Recorded, read
from loadtest.plan.chart import scaling
from loadtest.plots import Plot, Series, draw_column
from loadtest.screen import OUTPUT, plain_table, wide
from loadtest.simulate.clock import find
from loadtest.simulate.load import Drawn, Replayed
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Kind, Policy, Scenario
from loadtest.simulate.simulation import Pool, simulate

_ENOUGH = 0.99
DOORS: Mapping[str, float] = {"grpc": 365e-6, "http": 227e-6, "lists": 167e-6, "kafka": 38e-6}
"""Processor time of an aggregator a question, seconds, by how questions come: one a call, 32 a call, or as records.

The slower of the figures in docs/operate.md; of lists, that of aggregator and model server together.
"""
_BUSY_TARGET = 0.6
"""The chart's `aggregator.busyTarget`."""
"""Of answers in time: the least minReplicas that gives this many is recommended."""
_OURS = "tokenbatch"
_MORE = 4
"""Times the chart's maxReplicas, where the load reaches it."""
_SAMPLES = 500
_SIMULATED = 100_000
"""Queries of calm stretches, about: they stand for the rest, so that a plan takes a minute."""
_WIDTH = 110
_TIMEOUT_S = 10.0


def aggregators_a_gpu(tokens_per_s: float, tokens: float, door: str) -> int:
    """Aggregators that keep one model server of this speed busy with questions of so many tokens."""
    return max(1, ceil(tokens_per_s / tokens / (_BUSY_TARGET / DOORS[door])))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arrivals", type=Path, required=True, metavar="FILE",
        help="your own load: a CSV with a column time, and tokens, characters or text; or an access log",
    )  # fmt: skip
    parser.add_argument(
        "--profile", required=True, metavar="FILE|HOST:PORT",
        help="the speed of a model server: a profile.json of `python -m modelserver profile`, a running model server,"
        " a100-like or minilm-cpu",
    )  # fmt: skip
    parser.add_argument("--slo", type=_seconds, default=0.1, metavar="TIME", help="latency target, as 100ms or 2s")
    parser.add_argument("--cost-per-hour", type=positive, metavar="C", help="of one model server")
    parser.add_argument("--values", type=Path, metavar="FILE.yaml", help="your values of the chart, over its own")
    parser.add_argument("--start-s", type=positive, default=90.0, help="from a pod's creation to Ready (%(default)s)")
    parser.add_argument("--tokens", type=positive_int, default=12, help="of a query, if the file does not tell")
    parser.add_argument("--copies", type=positive_int, default=1, help="so many times the load, at the same times")
    parser.add_argument(
        "--door",
        choices=DOORS,
        default="grpc",
        help="how questions come: one a call, lists of 32, records (%(default)s)",
    )
    parser.add_argument("--plot", type=Path, default=Path("plan.svg"), metavar="FILE.svg", help="(%(default)s)")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, or 2 when it could not be done."""
    try:
        recorded = read(options.arrivals, tokens=options.tokens)
        scenario = _scenario(recorded, options)
        with Pool() as pool:
            ways = _compared(scenario, pool)
    except (OSError, ValueError, TokenbatchError) as error:
        return fail(options.prog, error)
    _say(recorded, scenario, ways, options)
    return 0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve the load, between this many pods at least and at most, and what came of it."""

    name: str
    bounds: tuple[int, int]
    outcome: Outcome

    @property
    def peak(self) -> int:
        """The most pods that were requested."""
        return max((int(moment["replicas"]) for moment in self.outcome.trace), default=self.bounds[0])


def _compared(scenario: Scenario, pool: Pool) -> list[Way]:
    """The chart as it is, beside other ways of batching; then with more pods until enough is in time."""
    assert scenario.autoscale is not None, "Nothing scales in a plan. This is a bug."
    least, most = scenario.autoscale.hpa.min_replicas, scenario.autoscale.hpa.max_replicas
    first, *others = _run(
        [
            (_OURS, Policy(Kind.OURS), (least, most)),
            ("32 requests or 10 ms", Policy(Kind.REQUEST_COUNT, size=32, wait_s=0.010, depth=2), (least, most)),
            ("one by one", Policy(Kind.SEQUENTIAL), (least, most)),
        ],
        scenario,
        pool,
    )
    if first.outcome.in_time >= _ENOUGH:
        return [first, *others]
    most = most if first.peak < most else _MORE * most
    counts = sorted({min(most, least * factor) for factor in (1, 2, 4, 8)})
    tried = _run([(_OURS, Policy(Kind.OURS), (count, most)) for count in counts], scenario, pool)
    enough = next((place for place, way in enumerate(tried) if way.outcome.in_time >= _ENOUGH), len(tried))
    return [first, *others, *(way for way in tried[: enough + 1] if way.bounds != first.bounds)]


def _run(ways: Sequence[tuple[str, Policy, tuple[int, int]]], scenario: Scenario, pool: Pool) -> list[Way]:
    assert scenario.autoscale is not None, "Nothing scales in a plan. This is a bug."
    scenarios: list[Scenario] = []
    for _, _, (least, most) in ways:
        hpa = replace(scenario.autoscale.hpa, min_replicas=least, max_replicas=most)
        scenarios.append(replace(scenario, autoscale=replace(scenario.autoscale, hpa=hpa), pods=least))
    outcomes = pool.map(simulate, scenarios, [policy for _, policy, _ in ways])
    return [Way(name, bounds, outcome) for (name, _, bounds), outcome in zip(ways, outcomes, strict=True)]


def _scenario(recorded: Recorded, options: argparse.Namespace) -> Scenario:
    curve = _curve(options.profile)
    return Scenario(
        "plan",
        Replayed(recorded.times_s, options.copies),
        recorded.duration_s,
        curve=curve,
        lengths=Drawn(tokens=recorded.tokens, copies=options.copies),
        slo_s=options.slo,
        autoscale=scaling(options.values, options.start_s),
        warm_up_s=0.0,
        sample_s=max(1.0, recorded.duration_s / _SAMPLES),
        calm_share=min(1.0, _SIMULATED / (len(recorded.times_s) * options.copies)),
    )


def _curve(profile: str) -> Curve:
    """Of a file or a name, or of a model server that is asked. Raises ValueError, OSError, TokenbatchError."""
    if not re.fullmatch(r"[^/]+:\d+", profile):
        return find(profile)
    said = asyncio.run(describe(profile, KINDS, _TIMEOUT_S))
    if said.curve is None:
        raise ValueError(f"the model server at {profile} has not measured itself: profile.enabled is false")
    return said.curve


def _say(recorded: Recorded, scenario: Scenario, ways: Sequence[Way], options: argparse.Namespace) -> None:
    hours = recorded.duration_s / 3600
    count = len(recorded.times_s) * options.copies
    OUTPUT.print(
        f"{count:,} queries in {hours:.1f} h, {recorded.tokens.mean():.1f} tokens in the mean"
        + (" (a guess: the file tells no lengths)" if recorded.guessed else ""),
        highlight=False,
    )
    wide(_WIDTH).print(_table(ways, scenario.slo_s, options.cost_per_hour))
    options.plot.write_text(_plot(ways[0], _best(ways)), encoding="utf-8")
    OUTPUT.print(
        f"pods over time: {options.plot}\n\n{_advice(ways, scenario, options.door)}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _best(ways: Sequence[Way]) -> Way:
    """Ours with the most in time, the first of equals."""
    return max((way for way in ways if way.name == _OURS), key=lambda way: way.outcome.in_time)


def _table(ways: Sequence[Way], slo_s: float, cost: float | None) -> Table:
    costs = [] if cost is None else ["cost"]
    shown = plain_table("", "replicas", "peak", "pod hours", *costs, f"in {1000 * slo_s:g} ms", "p50 ms", "p99 ms")
    for way in ways:
        one, hours = way.outcome, way.outcome.pod_s / 3600
        shown.add_row(
            way.name,
            f"{way.bounds[0]} to {way.bounds[1]}",
            str(way.peak),
            f"{hours:,.1f}",
            *([] if cost is None else [f"{hours * cost:,.2f}"]),
            f"{one.in_time:.1%}",
            f"{1000 * one.p50_s:,.0f}",
            f"{1000 * one.p99_s:,.0f}",
        )
    return shown


def _rates(outcome: Outcome) -> list[tuple[float, float]]:
    """Hours, and queries a second."""
    return [
        (after["time_s"] / 3600, (after["arrived"] - before["arrived"]) / (after["time_s"] - before["time_s"]))
        for before, after in pairwise(outcome.trace)
    ]


def _plot(first: Way, best: Way) -> str:
    """Queries a second, and the pods that are ready, over the hours."""
    rates = _rates(first.outcome)
    chosen = [first] if best is first else [first, best]
    pods = [
        Series(
            f"{way.bounds[0]} to {way.bounds[1]}",
            [(moment["time_s"] / 3600, moment["ready"]) for moment in way.outcome.trace],
            steps=True,
        )
        for way in chosen
    ]
    load = Plot("queries a second", "hours", "queries/s", [Series("queries/s", rates)], from_zero=True)
    return draw_column([load, Plot("model servers", "hours", "ready", pods, from_zero=True)], "plan")


def _advice(ways: Sequence[Way], scenario: Scenario, door: str) -> str:
    """The conclusion of the table, and the values that follow."""
    assert scenario.autoscale is not None, "Nothing scales in a plan. This is a bug."
    best, first = _best(ways), ways[0]
    lines: list[str] = []
    if first.outcome.in_time < _ENOUGH:
        start_s = scenario.autoscale.start_s
        lines.append(f"Pods start in {start_s:.0f} s: a load that rises faster waits for them, however it is batched.")
    if best is not first:
        more = (best.outcome.pod_s - first.outcome.pod_s) / 3600
        gained = best.outcome.in_time - first.outcome.in_time
        bounds = f"replicas {best.bounds[0]} to {best.bounds[1]}"
        lines.append(f"{bounds}: {gained:.1%} more in time than the chart as it is, for {more:,.1f} more pod hours.")
    peak = max((rate for _, rate in _rates(first.outcome)), default=0.0)
    aggregators = ceil(peak * DOORS[door] / _BUSY_TARGET)
    curve, tokens = find(scenario.curve), scenario.lengths.mean()
    lines.append(
        f"Aggregators need {peak * DOORS[door]:.2f} of a core at the peak of {peak:,.0f} queries a second by {door}:"
        f" busyTarget {_BUSY_TARGET} makes that {aggregators}. A model server at its limit takes"
        f" {curve.throughput(curve.saturation_point) / tokens:,.0f} queries a second, which keep"
        f" {aggregators_a_gpu(curve.throughput(curve.saturation_point), tokens, door)} aggregators busy."
    )
    if best.outcome.in_time < _ENOUGH:
        lines.append("No number of pods that was tried answers 99 % in time: set a longer target, or keep more pods.")
    return "\n".join(
        [
            *lines,
            "",
            "modelServer:",
            "  autoscaling:",
            f"    minReplicas: {best.bounds[0]}",
            f"    maxReplicas: {max(best.peak + 1, scenario.autoscale.hpa.max_replicas)}",
            "aggregator:",
            f"  autoscaling: {{maxReplicas: {max(2, aggregators + 1)}}}",
            f"  config: {{sla: {{latency_s: {scenario.slo_s:g}}}}}",
        ]
    )


def _seconds(text: str) -> float:
    """A time such as 100ms or 2s."""
    found = re.fullmatch(r"([\d.]+)(ms|s)", text.strip())
    if not found or not float(found[1]) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a time such as 100ms or 2s")
    return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)
