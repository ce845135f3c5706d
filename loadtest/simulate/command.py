"""`loadtest simulate`: run cases in virtual time, on the aggregator's own core."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.table import Table

from loadtest.options import fail, positive, positive_int
from loadtest.screen import ERRORS, plain_table, wide
from loadtest.simulate import cases
from loadtest.simulate.core_aggregator import Mechanism
from loadtest.simulate.outcome import Outcome
from loadtest.simulate.scenario import Kind, Policy, Scenario
from loadtest.simulate.simulation import simulate

_WIDTH = 110
_SHORT_WARM_UP = 0.1
"""Of a run too short for the case's own."""
_LONG: dict[str, Callable[[], Scenario]] = {
    "trace-hour": cases.trace_hour,
    "day": cases.synthetic_day,
    "large": cases.large,
    **{f"batcher-{size}": partial(cases.batcher, size) for size in (8, 16, 32)},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--case",
        choices=[*cases.NAMES, *_LONG],
        nargs="+",
        default=["steady"],
        metavar="CASE",
        help=f"what is simulated (steady): {', '.join([*cases.NAMES, *_LONG])}",
    )
    parser.add_argument(
        "--policy",
        choices=[kind.value for kind in Kind],
        nargs="+",
        default=[Kind.OURS.value],
        metavar="POLICY",
        help=f"how it batches (ours): {', '.join(kind.value for kind in Kind)}",
    )
    parser.add_argument("--seed", type=int, nargs="+", default=[1], metavar="N", help="one run each (1)")
    group = parser.add_argument_group("the case, changed")
    curves = "a100-like, h200-eager, h200-graphs, minilm-cpu, or a profile's file (%(default)s)"
    group.add_argument("--curve", default="a100-like", help=curves)
    group.add_argument("--seconds", type=positive, help="how long the load lasts, in virtual seconds")
    group.add_argument("--pods", type=positive_int)
    group.add_argument("--aggregators", type=positive_int)
    group.add_argument("--slo-s", type=positive, metavar="S", help="latency target; ours sets its budgets by it")
    group = parser.add_argument_group("the policy's setting")
    group.add_argument("--tokens", type=positive_int, default=0, help="budget of static_tokens; overrides ours")
    group.add_argument("--size", type=positive_int, default=32, help="of request_count (%(default)s)")
    group.add_argument("--wait-ms", type=float, default=5.0, help="of request_count and time_window (%(default)s)")
    group.add_argument(
        "--without", type=Mechanism, nargs="*", metavar="MECHANISM", default=[],
        help=f"what ours lacks (nothing): {', '.join(each.value for each in Mechanism)}",
    )  # fmt: skip
    group.add_argument("--depth", type=positive_int, default=1, help="batches in flight to a pod (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure, one run a line, the same for one seed")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, or 2 when it could not be done."""
    outcomes: list[Outcome] = []
    try:
        for name in options.case:
            scenario = _scenario(name, options)
            for kind in map(Kind, options.policy):
                outcomes += _runs(scenario, _policy(kind, options), options.seed)
        if options.json:
            options.json.write_text("".join(outcome.to_json() + "\n" for outcome in outcomes), encoding="utf-8")
    except (OSError, ValueError) as error:
        return fail(options.prog, error)
    wide(_WIDTH).print(table(outcomes))
    return 0


def table(outcomes: Iterable[Outcome]) -> Table:
    titles = ("seed", "arrived", "in time", "qps", "p50 ms", "p90 ms", "p99 ms", "batch tokens", "busy")
    shown = plain_table("case", "policy", *titles, names=2)
    for one in outcomes:
        times = (f"{1000 * value:.1f}" for value in (one.p50_s, one.p90_s, one.p99_s))
        shown.add_row(
            one.scenario,
            one.policy,
            str(one.seed),
            str(one.arrived),
            f"{one.in_time:.1%}",
            f"{one.throughput:.0f}",
            *times,
            f"{one.mean_batch_tokens:.0f}",
            f"{one.utilisation:.0%}",
        )
    return shown


def _runs(scenario: Scenario, policy: Policy, seeds: Sequence[int]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for seed in seeds:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        outcome = simulate(scenario, policy, seed)
        wall_s, used_s = max(1e-9, time.perf_counter() - began_s), max(1e-9, time.process_time() - cpu_s)
        millions = outcome.arrived * 60.0 / 1e6
        ERRORS.print(
            f"{scenario.name}, {policy.label}, seed {seed}: {wall_s:.1f} s, {millions / wall_s:.2f} million queries "
            f"a minute of wall time, {millions / used_s:.2f} of one core's",
            markup=False,
            soft_wrap=True,
        )
        outcomes.append(outcome)
    return outcomes


def _scenario(name: str, options: argparse.Namespace) -> Scenario:
    if name in _LONG:
        scenario = _LONG[name]()
    else:
        scenario = cases.case(name, curve=options.curve, seconds=options.seconds or 20.0)
    given = {"duration_s": options.seconds, "pods": options.pods, "aggregators": options.aggregators}
    given["slo_s"] = options.slo_s
    scenario = replace(scenario, **{field: value for field, value in given.items() if value is not None})
    if scenario.duration_s < 2.0 * scenario.warm_up_s:
        scenario = replace(scenario, warm_up_s=_SHORT_WARM_UP * scenario.duration_s)
    return scenario


def _policy(kind: Kind, options: argparse.Namespace) -> Policy:
    wait_s = options.wait_ms / 1000.0
    without = frozenset(options.without)
    return Policy(kind, tokens=options.tokens, size=options.size, wait_s=wait_s, depth=options.depth, without=without)
