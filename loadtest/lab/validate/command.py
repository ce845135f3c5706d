"""`loadtest validate`: the simulator beside the running system, on a profile measured here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from rich.table import Table

from loadtest.lab.validate import live, sla
from loadtest.lab.validate.compare import Repeat, Row, Run, row, simulated
from loadtest.lab.validate.costs import Costs, costs, read
from loadtest.options import fail, positive, positive_int
from loadtest.screen import ERRORS, OUTPUT, plain_table
from loadtest.simulate.cases import capacity
from loadtest.simulate.clock import find, step_times
from loadtest.simulate.load import Lengths
from loadtest.stack.errors import StackError
from loadtest.stack.service import Aggregator, ModelServer
from protos.modelserver.v1.curve import Curve

_COSTS_AT, _COSTS_S = 0.6, 8.0
"""The load, as a share of what the profile allows, and the seconds of it, from which costs are taken."""
_TARGET = 0.9
"""Of the time of a step at the saturation point: no batch that large can be answered in it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--load",
        type=positive,
        nargs="+",
        default=[0.3, 0.5, 0.7],
        metavar="SHARE",
        help="shares of what the model server can do by its profile (0.3 0.5 0.7)",
    )
    parser.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="of each load (%(default)s)")
    parser.add_argument("--seconds", type=positive, default=20.0, help="of each repeat (%(default)s)")
    parser.add_argument("--engine", choices=["auto", "direct", "core"], help="of the model server")
    parser.add_argument("--data-dir", type=Path, default=Path(".run/validate"), metavar="DIR", help="(%(default)s)")
    parser.add_argument(
        "--sla",
        type=Path,
        metavar="SVG",
        help="set a latency target below one step at the saturation point instead, and plot batches against it",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure")


def run(options: argparse.Namespace) -> int:
    """The exit code: 0, 1 when a figure is further off than it may be, 2 when it could not be done."""
    if options.sla:
        return _keep(options)
    settings = {"ENGINE__KIND": options.engine} if options.engine else {}
    try:
        with live.running(options.data_dir, settings) as (server, front, profile):
            curve = find(str(profile))
            found = _costs(server, front, capacity(curve, Lengths()))
            ERRORS.print(
                f"saturation point {curve.saturation_point}; {found.work}; {1e3 * found.delay_s:.2f} ms more an answer",
                markup=False,
                soft_wrap=True,
            )
            rows = _rows(options, server, front, profile, found)
        if options.json:
            content = {"profile": json.loads(profile.read_text(encoding="utf-8")), "rows": [r.to_dict() for r in rows]}
            options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except (OSError, ValueError, StackError) as error:
        return fail("validate", error)
    OUTPUT.print(table(rows))
    return 0 if all(one.p50_holds and one.p99_holds for one in rows) else 1


def _keep(options: argparse.Namespace) -> int:
    try:
        kept = sla.measure(options.data_dir, _TARGET, options.seconds)
        options.sla.write_text(kept.plot(), encoding="utf-8")
    except (OSError, ValueError, StackError) as error:
        return fail("validate", error)
    since_s = kept.inside_from_s
    budgets = [one.token_budget for one in kept.sent[len(kept.sent) // 2 :]]
    OUTPUT.print(
        f"saturation point {kept.saturation_point}, target {1e3 * kept.target_s:.1f} ms, budget {median(budgets):g} "
        f"in the second half; p95 of a second's batches inside "
        + ("at no time up to the end" if since_s is None else f"from second {since_s:g} to the end")
        + f", {kept.inside:.0%} of the seconds since the first",
        markup=False,
        soft_wrap=True,
    )
    return 0 if since_s is not None else 1


def _costs(server: ModelServer, front: Aggregator, per_s: float) -> Costs:
    """What the live system spends besides its steps, measured now."""
    live.call(front.address, 0.2 * per_s, 3.0, 0)  # warms up
    began = read(server, front)
    overhead_s = live.alone_s(front.address)
    between = read(server, front)
    live.call(front.address, _COSTS_AT * per_s, _COSTS_S, 0)
    return costs(overhead_s, between - began, read(server, front) - between)


def _rows(
    options: argparse.Namespace, server: ModelServer, front: Aggregator, profile: Path, found: Costs
) -> list[Row]:
    curve = find(str(profile))
    per_s = capacity(curve, Lengths())
    rows: list[Row] = []
    for share in options.load:
        rate, seconds = share * per_s, options.seconds
        done = [_repeat(server, front, (rate, seconds, seed), curve, found) for seed in range(1, options.repeats + 1)]
        outcomes = simulated(str(profile), rate, seconds, [run for _, run in done], found.delay_s)
        rows.append(row(share, rate, [repeat for repeat, _ in done], outcomes))
    return rows


def _repeat(
    server: ModelServer, front: Aggregator, load: tuple[float, float, int], curve: Curve, found: Costs
) -> tuple[Repeat, Run]:
    """One live run of a load: its rate, seconds and seed."""
    rate, seconds, _ = load
    before = read(server, front)
    calls = live.call(front.address, *load)
    used = read(server, front) - before
    counted = calls.latency_s[calls.due_s >= 0.1 * seconds]
    p50_s, p99_s = (float(value) for value in np.percentile(counted, [50, 99]))
    work, times = found.of(used), step_times([(step.tokens, step.duration_s) for step in calls.steps], curve)
    ERRORS.print(
        f"{rate:.1f}/s: p50 {1e3 * p50_s:.1f}, p99 {1e3 * p99_s:.1f} ms; {work}; "
        f"steps {min(times.usual):.2f} to {max(times.usual):.2f} times the profile's",
        markup=False,
        soft_wrap=True,
    )
    return Repeat(p50_s, p99_s), Run(work, times)


def table(rows: Sequence[Row]) -> Table:
    """One row a load, in milliseconds."""
    titles = ("load", "queries/s", "live p50", "of", "simulated", "off", "", "live p99", "simulated", "")
    shown = plain_table(*titles)
    for one in rows:
        p50s, p99s = sorted(repeat.p50_s for repeat in one.live), sorted(repeat.p99_s for repeat in one.live)
        shown.add_row(
            f"{one.share:g}",
            f"{one.rate:.1f}",
            f"{1e3 * one.live_p50_s:.1f}",
            f"{1e3 * p50s[0]:.1f}-{1e3 * p50s[-1]:.1f}",
            f"{1e3 * one.p50_s:.1f}",
            f"{one.p50_off:+.0%}",
            "holds" if one.p50_holds else "is off",
            f"{1e3 * p99s[0]:.1f}-{1e3 * p99s[-1]:.1f}",
            f"{1e3 * one.p99_s:.1f}",
            "holds" if one.p99_holds else "is off",
        )
    return shown
